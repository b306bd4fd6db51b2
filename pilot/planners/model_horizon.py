"""The compact formulation of Huawei's rolling horizon (§4.4) in Pyomo, one function per family of constraints.

One binary per trainer, step and size says which size it has; its progress is their sum, at most 1::

    maximize    sum over i, t of  done[i, t]                                              (1)
    subject to  done[i, t] <= 1                                                           (2)
                done[i, t] <= sum over u <= t and k of  share_ik * use[i, u, k]           (19, 20)
                sum over k of  use[i, t, k] = 1                                           (15-18)
                sum over i and k of  k * use[i, t, k] <= N                                (6)

It has the optimum of ``tests/property/model_printed.py`` with a fifth of its binaries and no big M.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyomo.environ import Binary, ConcreteModel, Constraint, Objective, UnitInterval, Var, maximize

from pilot.core.problem import Problem
from pilot.planners.horizon import STEPS, counts_of, jobs_of
from pilot.planners.model import linear

SCALE = 1e3
"""Of the objective: what long trainers do in a step is a small share of them, and solvers' tolerances are absolute."""


def build(problem: Problem, steps: int = STEPS, without: Collection[tuple[int, int, int]] = ()) -> ConcreteModel:
    """The model of ``problem``; ``counts`` reads the first step of it.

    ``without``: choices (i, t, k) that no optimal plan has; they are omitted.
    """
    m = ConcreteModel()
    m.without = frozenset(without)
    m.problem, m.jobs, m.steps = problem, jobs_of(problem, steps), range(steps)
    m.scale, m.constant = SCALE, 0.0
    add_sizes(m)
    add_capacity(m)
    add_progress(m)
    m.value = Objective(expr=linear([SCALE] * len(m.done), list(m.done.values())), sense=maximize)
    return m


def add_sizes(m: ConcreteModel) -> None:
    """Each trainer has one of its sizes in each step (Huawei eqs 15-18)."""
    every = [(i, t, k) for i, job in enumerate(m.jobs) for t in m.steps for k in range(len(job.sizes))]
    m.use = Var([choice for choice in every if choice not in m.without], domain=Binary)
    m.left = {(i, t): [] for i in range(len(m.jobs)) for t in m.steps}
    for i, t, k in m.use:
        m.left[i, t].append(k)

    def one_size(m: ConcreteModel, i: int, t: int) -> object:
        sizes = m.left[i, t]
        return linear([1] * len(sizes), [m.use[i, t, k] for k in sizes]) == 1

    m.one_size = Constraint(range(len(m.jobs)), m.steps, rule=one_size)


def add_capacity(m: ConcreteModel) -> None:
    """No step uses more than the pool (Huawei eq. 6)."""

    def capacity(m: ConcreteModel, t: int) -> object:
        left = [(i, k) for i in range(len(m.jobs)) for k in m.left[i, t]]
        return linear([m.jobs[i].sizes[k] for i, k in left], [m.use[i, t, k] for i, k in left]) <= m.problem.nodes

    m.capacity = Constraint(m.steps, rule=capacity)


def add_progress(m: ConcreteModel) -> None:
    """Progress adds up, to 1 at most (Huawei eqs 2, 19, 20)."""
    m.done = Var(range(len(m.jobs)), m.steps, domain=UnitInterval)

    def progress(m: ConcreteModel, i: int, t: int) -> object:
        left, shares = m.left[i, t], m.jobs[i].shares
        before = [m.done[i, t - 1]] if t else []
        used = [m.use[i, t, k] for k in left]
        return linear([1, *[-1] * len(before), *(-shares[k] for k in left)], [m.done[i, t], *before, *used]) <= 0

    m.progress = Constraint(range(len(m.jobs)), m.steps, rule=progress)


def start(m: ConcreteModel, sizes: Sequence[Sequence[int]]) -> None:
    """Set the variables so that the i-th job has its ``sizes[i][t]``-th size in step t."""
    for i, job in enumerate(m.jobs):
        done = 0.0
        for t in m.steps:
            for k in m.left[i, t]:
                m.use[i, t, k].set_value(int(k == sizes[i][t]), skip_validation=True)
            done = min(1.0, done + job.shares[sizes[i][t]])
            m.done[i, t].set_value(done, skip_validation=True)


def counts(m: ConcreteModel) -> list[int]:
    """n_i of the first step, in the candidates' order, from the values that were read."""
    sizes = [sum(job.sizes[k] * round(m.use[i, 0, k].value) for k in m.left[i, 0]) for i, job in enumerate(m.jobs)]
    return counts_of(m.problem, m.jobs, sizes)
