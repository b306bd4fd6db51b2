"""The input and the formulation of Huawei's rolling horizon: each trainer's sizes, speeds and remaining work (§4).

A trainer's *progress* after a step is the share of its remaining work that is done by then, at most 1. The objective
is its sum over trainers and steps (eq. 1): s of eqs 2-4 is cumulative, so early progress counts again at each later
step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pyomo.environ import Binary, ConcreteModel, Constraint, Objective, UnitInterval, Var, maximize

from pilot.core.plan.problem import Candidate, Problem
from pilot.core.pool.losses import NO_LOSS, LossRate
from pilot.planners.model import linear

STEPS = 5
"""T: the number of steps in the horizon (§5.1)."""


@dataclass(frozen=True, slots=True)
class HuaweiJob:
    """A trainer as the paper sees it."""

    index: int  #: of its candidate
    sizes: tuple[int, ...]  #: K, the counts that it may have
    speeds: tuple[float, ...]  #: how many times as fast as on one node it is with each
    demand_s: float  #: d, its remaining work in seconds on one node
    shares: tuple[float, ...]  #: the share of ``demand_s`` that a step is expected to do with each size, at most 1
    held: int = 0  #: the nodes that it has now
    held_speed: float = 0.0  #: how many times as fast as on one node it is with them
    up_s: float = 0.0  #: the cost of a change to more nodes, at the rate before it (FreeTrain eq. 16); 0 in the paper
    down_s: float = 0.0  #: the cost of a change to fewer nodes


def jobs_of(problem: Problem, steps: int = STEPS, losses: LossRate = NO_LOSS) -> list[HuaweiJob]:
    """The candidates that can have nodes, first come, first served: as many as fit with their smallest sizes.

    In the paper every job has at least n_min nodes in every step (eq. 15), so with more jobs than fit there is no
    solution at all: here the remaining ones wait. ``losses`` are the expected preemptions; none in the paper.
    """
    jobs, left = [], problem.nodes
    for index, candidate in enumerate(problem.candidates):
        sizes = sizes_of(candidate, problem.nodes)
        if sizes and sizes[0] <= left:
            left -= sizes[0]
            jobs.append(_job(index, candidate, sizes, problem.step_s, steps, losses))
    return jobs


def sizes_of(candidate: Candidate, nodes: int) -> tuple[int, ...]:
    """The sizes that are allowed; powers of two (the paper's K) if all are, or else the smallest."""
    low, high = candidate.min_nodes, min(candidate.max_nodes, nodes)
    if candidate.sizes:
        return tuple(n for n in candidate.sizes if n <= high)
    powers = tuple(2**m for m in range(high.bit_length()) if low <= 2**m <= high)
    return powers or ((low,) if low <= high else ())


def counts_of(problem: Problem, jobs: Sequence[HuaweiJob], sizes: Sequence[int]) -> list[int]:
    """The nodes in the first step, the only one that takes effect, in the candidates' order; 0 for those that wait."""
    counts = [0] * len(problem.candidates)
    for job, size in zip(jobs, sizes, strict=True):
        counts[job.index] = size
    return counts


def _job(
    index: int, candidate: Candidate, sizes: tuple[int, ...], step_s: float, steps: int, losses: LossRate
) -> HuaweiJob:
    """If the remaining work is not known, it is the work of the largest size in all steps. A loss of nodes costs a
    rescale down, and one up when they are replaced: the schedule assumes that it regains its size.
    """
    single = candidate.value.single_node_rate()
    speeds = tuple(candidate.value.at(n) / single if single > 0 else 0.0 for n in sizes)
    unknown_s = max(1.0, steps * step_s * speeds[-1])
    demand_s = candidate.left_s if candidate.left_s is not None else unknown_s
    held, hit_s = candidate.current_nodes, candidate.rescale_down_s + candidate.rescale_up_s
    trains_share = [max(0.0, 1.0 - losses.hits_per_s(n) * hit_s) for n in sizes]
    return HuaweiJob(
        index,
        sizes,
        speeds,
        demand_s,
        tuple(min(1.0, step_s * speed * trains / demand_s) for speed, trains in zip(speeds, trains_share, strict=True)),
        held,
        candidate.value_at(held) / single if single > 0 else 0.0,
        candidate.rescale_up_s,
        candidate.rescale_down_s,
    )


SCALE = 1e3
"""Factor of the objective: a step is a small share of a long trainer, and solvers' tolerances are absolute."""


def build(problem: Problem, steps: int = STEPS, without: Collection[tuple[int, int, int]] = ()) -> ConcreteModel:
    """The compact formulation of ``problem`` (§4.4); ``counts`` reads the first step of it.

    One binary per trainer, step and size is 1 if it has that size; its progress is their sum, at most 1::

        maximize    sum over i, t of  done[i, t]                                              (1)
        subject to  done[i, t] <= 1                                                           (2)
                    done[i, t] <= sum over u <= t and k of  share_ik * use[i, u, k]           (19, 20)
                    sum over k of  use[i, t, k] = 1                                           (15-18)
                    sum over i and k of  k * use[i, t, k] <= N                                (6)

    It has the optimum of ``tests/property/model_printed.py`` with a fifth of its binaries and no big M.

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
