"""FreeTrain's formulation over nodes (§3, eqs 1-16) in Pyomo: the reference of ``milp`` on small problems.

One binary per trainer and node. The candidates hold the first nodes, in their order; which ones does not matter. The
printed equations hold with these corrections:

- eq. 4 prints ``M(i - y)`` for ``M(1 - y)``. Its ``y^u`` is redundant: ``N_j <= N_j^max`` also allows 0;
- M "greater than ``|N|``" is not enough: both sides of eq. 10 differ by up to ``2 |N|``, so that less forbids changes
  by more than about half the pool; and in eq. 4 M must not be less than any ``N_j^min``;
- eq. 11 needs a point (0, 0), else ``N_j = 0`` has no weights, and writes ``n_x`` for ``N_j``. Its special ordered set
  of type 2 is written with one binary per section, because neither GLPK nor HiGHS knows such sets;
- eq. 14 sums over j, but defines ``R_j`` for one j;
- eq. 16 charges the value at C_j, so a start from 0 nodes is free. Fewer than ``N_j^min`` (parked) nodes have no value.
"""

from __future__ import annotations

from itertools import accumulate

from pyomo.environ import (
    Binary,
    ConcreteModel,
    ConstraintList,
    Expression,
    Objective,
    UnitInterval,
    Var,
    maximize,
    quicksum,
)

from pilot.core.plan.problem import Candidate, Problem
from pilot.planners.choice import NO_GAIN
from pilot.planners.model import LARGEST_GAIN


def build(problem: Problem) -> ConcreteModel:
    """The model of ``problem``; the functions below take their data from it."""
    m = ConcreteModel()
    m.candidates, m.t_fwd_s = problem.candidates, problem.t_fwd_s
    m.trainers, m.nodes = range(len(m.candidates)), range(problem.nodes)
    m.big = 2 * problem.nodes + max(c.min_nodes + c.current_nodes for c in m.candidates)
    add_allocation(m)
    add_job_size(m)
    add_node_allocation(m)
    add_migration(m)
    add_objective_metric(m)
    add_rescaling_cost(m)
    add_objective(m)
    return m


def add_allocation(m: ConcreteModel) -> None:
    """``c[j, n]``: who holds which node, ``x[j, n]``: who gets it, ``N_j`` = sum of x (FreeTrain eqs 1, 2)."""
    ends = list(accumulate((c.current_nodes for c in m.candidates), initial=0))
    m.c = {(j, n): int(ends[j] <= n < ends[j + 1]) for j in m.trainers for n in m.nodes}
    m.x = Var(m.trainers, m.nodes, domain=Binary)
    m.N = Expression(m.trainers, rule=lambda m, j: quicksum(m.x[j, n] for n in m.nodes))


def add_job_size(m: ConcreteModel) -> None:
    """``N_j`` is 0 or between ``N_j^min`` and ``N_j^max`` (FreeTrain eqs 3, 4), and one of the sizes where these are
    given (ours)."""
    m.y = Var(m.trainers, domain=Binary)
    m.size = Var([(j, n) for j, c in enumerate(m.candidates) for n in c.sizes], domain=Binary)
    m.job_size = ConstraintList()
    for j, candidate in enumerate(m.candidates):
        m.job_size.add(m.N[j] >= candidate.min_nodes - m.big * m.y[j])
        m.job_size.add(m.N[j] <= m.big * (1 - m.y[j]))
        m.job_size.add(m.N[j] <= candidate.max_nodes)
        if candidate.sizes:
            m.job_size.add(m.N[j] == quicksum(n * m.size[j, n] for n in candidate.sizes))
            m.job_size.add(quicksum(m.size[j, n] for n in candidate.sizes) <= 1)


def add_node_allocation(m: ConcreteModel) -> None:
    """Each node serves at most one trainer (FreeTrain eq. 5)."""
    m.node_allocation = ConstraintList()
    for n in m.nodes:
        m.node_allocation.add(quicksum(m.x[j, n] for j in m.trainers) <= 1)


def add_migration(m: ConcreteModel) -> None:
    """A trainer takes nodes or gives nodes, never both: ``u = x xor c``, sum of u = ``|N_j - C_j|`` (eqs 6-10)."""
    m.u = Var(m.trainers, m.nodes, domain=Binary)
    m.z = Var(m.trainers, domain=Binary)
    m.migration = ConstraintList()
    for (j, n), held in m.c.items():
        m.migration.add(m.u[j, n] <= m.x[j, n] + held)
        m.migration.add(m.u[j, n] >= m.x[j, n] - held)
        m.migration.add(m.u[j, n] >= held - m.x[j, n])
        m.migration.add(m.u[j, n] <= 2 - m.x[j, n] - held)
    for j in m.trainers:
        change = m.N[j] - sum(m.c[j, n] for n in m.nodes)
        changed = quicksum(m.u[j, n] for n in m.nodes)
        m.migration.add(change >= changed - m.big * m.z[j])
        m.migration.add(change <= -changed + m.big * (1 - m.z[j]))


def add_objective_metric(m: ConcreteModel) -> None:
    """``O_j(N_j)`` by weights of two neighbouring points of the curve (FreeTrain eqs 11, 12)."""
    curves = [_points(candidate) for candidate in m.candidates]
    points = [(j, i) for j, curve in enumerate(curves) for i in range(len(curve))]
    m.w = Var(points, domain=UnitInterval)
    m.section = Var([(j, i) for j, i in points if i], domain=Binary)
    m.metric = ConstraintList()
    for j, curve in enumerate(curves):
        ends = range(1, len(curve))
        m.metric.add(quicksum(m.w[j, i] for i in range(len(curve))) == 1)
        m.metric.add(quicksum(m.w[j, i] * nodes for i, (nodes, _) in enumerate(curve)) == m.N[j])
        m.metric.add(quicksum(m.section[j, i] for i in ends) == 1)
        for i in range(len(curve)):
            m.metric.add(m.w[j, i] <= quicksum(m.section[j, k] for k in (i, i + 1) if k in ends))
    m.O = Expression(m.trainers, rule=lambda m, j: quicksum(m.w[j, i] * o for i, (_, o) in enumerate(curves[j])))


def add_rescaling_cost(m: ConcreteModel) -> None:
    """``R_j``: the cost of growing or shrinking, in seconds (FreeTrain eqs 13-15)."""
    m.up = Var(m.trainers, domain=Binary)
    m.down = Var(m.trainers, domain=Binary)
    m.rescaling = ConstraintList()
    for j, candidate in enumerate(m.candidates):
        held = candidate.current_nodes
        m.rescaling.add(m.N[j] <= held + (m.big - held) * m.up[j])
        m.rescaling.add(m.N[j] >= (held + 1) * m.up[j])
        m.rescaling.add(m.N[j] <= (held - 1) + (m.big - (held - 1)) * (1 - m.down[j]))
        m.rescaling.add(m.N[j] >= held * (1 - m.down[j]))
    costs = [(c.rescale_up_s, c.rescale_down_s) for c in m.candidates]
    m.R = Expression(m.trainers, rule=lambda m, j: costs[j][0] * m.up[j] + costs[j][1] * m.down[j])


def add_objective(m: ConcreteModel) -> None:
    """Value in ``t_fwd_s`` less the cost of rescaling at the old rate (FreeTrain eq. 16)."""
    held = [c.value_at(c.current_nodes) for c in m.candidates]
    peak = max(m.t_fwd_s * max(o for _, o in _points(c)) for c in m.candidates)
    m.constant, m.scale = 0.0, LARGEST_GAIN / max(peak, NO_GAIN)
    value = quicksum(m.t_fwd_s * m.O[j] - held[j] * m.R[j] for j in m.trainers)
    m.value = Objective(expr=m.scale * value, sense=maximize)


def counts(m: ConcreteModel) -> list[int]:
    """N_j of each trainer (FreeTrain eq. 2), from the values that were read from the solver."""
    return [sum(round(m.x[j, n].value) for n in m.nodes) for j in m.trainers]


def _points(candidate: Candidate) -> list[tuple[float, float]]:
    """The curve's points, up to ``max_nodes`` at least: beyond the last one, the last value per node holds."""
    curve = candidate.value
    points = list(zip(curve.nodes, curve.per_s, strict=True))
    if curve.nodes[-1] < candidate.max_nodes:
        points.append((float(candidate.max_nodes), curve.at(candidate.max_nodes)))
    return points
