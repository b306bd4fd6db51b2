"""Huawei's rolling horizon as printed (§4.4, eqs 1, 2, 5, 6, 12-20) in Pyomo: a cross-check for small problems.

n is an integer that two indicators per size tie to K: ``below`` (the paper's delta minus) is 1 where n <= k, ``above``
(delta plus) where n >= k. Both are 1 for one k only, so that all of them add up to |K| + 1.
"""

from __future__ import annotations

from pyomo.environ import (
    Binary,
    ConcreteModel,
    ConstraintList,
    NonNegativeIntegers,
    NonNegativeReals,
    Objective,
    Var,
    maximize,
    quicksum,
)

from pilot.core.plan.problem import Problem
from pilot.research.planners.horizon import STEPS, counts_of, jobs_of


def build(problem: Problem, steps: int = STEPS) -> ConcreteModel:
    """The model of ``problem``. A sufficient M exceeds every difference of a count and a size."""
    m = ConcreteModel()
    m.problem, m.jobs, m.steps = problem, jobs_of(problem, steps), range(steps)
    m.big = 1 + max(job.sizes[-1] for job in m.jobs)
    m.scale, m.constant = 1.0, 0.0
    m.keys = [(i, t) for i in range(len(m.jobs)) for t in m.steps]
    add_counts(m)
    add_powers(m)
    add_progress(m)
    share = quicksum(m.s[i, t] / m.jobs[i].demand_s for i, t in m.keys)
    m.value = Objective(expr=share, sense=maximize)
    return m


def add_counts(m: ConcreteModel) -> None:
    """n within its bounds, and all of them within N (eqs 5, 6, 12, 15)."""
    m.n = Var(m.keys, domain=NonNegativeIntegers, bounds=lambda m, i, _: (m.jobs[i].sizes[0], m.jobs[i].sizes[-1]))
    m.capacity = ConstraintList()
    for t in m.steps:
        m.capacity.add(quicksum(m.n[i, t] for i in range(len(m.jobs))) <= m.problem.nodes)


def add_powers(m: ConcreteModel) -> None:
    """n is in K (eqs 16-18)."""
    sized = [(i, t, k) for i, t in m.keys for k in m.jobs[i].sizes]
    m.below = Var(sized, domain=Binary)
    m.above = Var(sized, domain=Binary)
    m.powers = ConstraintList()
    for i, t, k in sized:
        for delta, difference in ((m.below[i, t, k], m.n[i, t] - k), (m.above[i, t, k], k - m.n[i, t])):
            m.powers.add((1 - delta) / m.big - m.big * delta <= difference)
            m.powers.add(difference <= m.big * (1 - delta))
    for i, t in m.keys:
        both = quicksum(m.below[i, t, k] + m.above[i, t, k] for k in m.jobs[i].sizes)
        m.powers.add(both == len(m.jobs[i].sizes) + 1)


def add_progress(m: ConcreteModel) -> None:
    """s adds up what the chosen size does in a step, up to d (eqs 2, 13, 19, 20)."""
    m.s = Var(m.keys, domain=NonNegativeReals, bounds=lambda m, i, _: (0, m.jobs[i].demand_s))
    m.progress = ConstraintList()
    for i, t in m.keys:
        job, before = m.jobs[i], m.s[i, t - 1] if t else 0
        speeds = zip(job.sizes, job.speeds, strict=True)
        chosen = quicksum(speed * (m.below[i, t, k] + m.above[i, t, k] - 1) for k, speed in speeds)
        m.progress.add(m.s[i, t] <= before + m.problem.step_s * chosen)


def counts(m: ConcreteModel) -> list[int]:
    """n_i of the first step, in the candidates' order, from the values that were read."""
    return counts_of(m.problem, m.jobs, [round(m.n[i, 0].value) for i in range(len(m.jobs))])
