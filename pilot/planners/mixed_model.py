"""The problem with several types of nodes in Pyomo, one function per family of constraints.

Trainer j gets x_jk of the N_k nodes of type k, holds c_jk, and computes s_jk times as fast there as on its reference
type (0: it cannot use the type). Its curve has pieces p that start at effective number E_p, where it is worth V_p, and
are L_p long, with slope sigma_p. Binaries say whether it has nodes (y), in which piece it is (w), and whether it gets
(u) or gives back (d) any; its rescale costs q::

    maximize    sum over j of  t_fwd * v_j - q_j                                              (16)
    subject to  sum over j of x_jk <= N_k                               for each type         (5)
                Nmin_j * y_j <= sum over k of x_jk <= Nmax_j * y_j      for each trainer      (3)
                sum over k of s_jk * x_jk = sum over p of E_p * w_jp + tau_jp                 (11)
                0 <= tau_jp <= L_p * w_jp,   sum over p of w_jp = y_j                         (11, 12)
                v_j = sum over p of V_p * w_jp + sigma_p * tau_jp                             (12)
                x_jk - c_jk <= N_k * u_j,   c_jk - x_jk <= c_jk * d_j                         (13, 14)
                q_j >= O_j(c_j) * Rup_j * u_j,   q_j >= O_j(c_j) * Rdw_j * d_j                (13, 16)

The numbers are FreeTrain's equations that each family is for; with one type of speed 1 it is the same problem. Where a
curve is concave, w need not be binary: the best mixture of pieces is the curve itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pyomo.core.expr.numeric_expr import LinearExpression
from pyomo.environ import (
    Binary,
    ConcreteModel,
    ConstraintList,
    NonNegativeIntegers,
    NonNegativeReals,
    Objective,
    Var,
    maximize,
)

from pilot.core.ids import TrainerId
from pilot.core.plan.problem import ByType, Candidate, Plan, Problem
from pilot.planners.choice import NO_GAIN
from pilot.planners.model import LARGEST_GAIN, linear

Piece = tuple[float, float, float, float]
"""E, L, V and sigma of a piece."""
_ANY = TrainerId("")


def build(problem: Problem) -> ConcreteModel:
    """The model, with the ``problem``, the ``pieces`` of each trainer, and the indices of all."""
    m = ConcreteModel()
    m.problem, m.constant = problem, 0.0
    m.trainers, m.types = range(len(problem.candidates)), range(len(problem.types))
    m.pieces = [pieces(c, sum(problem.types_nodes)) for c in problem.candidates]
    m.each_piece = [(j, p) for j in m.trainers for p in range(len(m.pieces[j]))]
    for add in (add_nodes, add_capacity, add_sizes, add_one_type, add_pieces, add_rescales, add_order, add_objective):
        add(m)
    return m


def pieces(c: Candidate, there: int) -> list[Piece]:
    """The pieces of its curve as far as it can get; the last one goes on per node."""
    nodes, per_s, most = c.value.nodes, c.value.per_s, max(c.speeds) * min(c.pin or c.max_nodes, there)
    slopes = [(b - a) / (after - at) for (at, after), (a, b) in zip(pairwise(nodes), pairwise(per_s), strict=True)]
    rows = zip(nodes, (*nodes[1:], most), per_s, (*slopes, per_s[-1] / nodes[-1]), strict=True)
    return [(start, min(end, most) - start, value, slope) for start, end, value, slope in rows if start <= most]


def add_nodes(m: ConcreteModel) -> None:
    """``Nmin y <= sum over k of x_k <= Nmax y``: it has no nodes or an allowed number (FreeTrain eq. 3), none of types
    that it cannot use. A pin is both ends; y is 1 for one that must run."""
    m.x = Var(m.trainers, m.types, domain=NonNegativeIntegers)
    m.y, m.between = Var(m.trainers, domain=Binary), ConstraintList()
    for j, c in enumerate(m.problem.candidates):
        least, most = (c.min_nodes, c.max_nodes) if c.pin is None else (c.pin, c.pin)
        for k in m.types:
            m.x[j, k].setub(min(most, m.problem.types_nodes[k]) if c.speeds[k] > 0 else 0)
        m.y[j].setlb(int(c.must_run if c.pin is None else c.pin > 0))
        m.between.add((0, total([*_nodes(m, j), (-least, m.y[j])]), None))
        m.between.add((None, total([*_nodes(m, j), (-most, m.y[j])]), 0))


def add_capacity(m: ConcreteModel) -> None:
    """``sum over j of x_jk <= N_k``: each node serves at most one trainer (FreeTrain eq. 5, summed over a type)."""
    m.capacity = ConstraintList()
    for k, there in enumerate(m.problem.types_nodes):
        m.capacity.add((None, total((1, m.x[j, k]) for j in m.trainers), there))


def add_sizes(m: ConcreteModel) -> None:
    """``sum over k of x_k = sum of size * b_size``, ``sum of b_size = y``: one of some numbers (FreeTrain eq. 3)."""
    m.sizes = {j: c.sizes for j, c in enumerate(m.problem.candidates) if c.sizes and c.pin is None}
    m.b, m.size = Var([(j, n) for j, sizes in m.sizes.items() for n in sizes], domain=Binary), ConstraintList()
    for j, sizes in m.sizes.items():
        m.size.add((0, total([*_nodes(m, j), *((-n, m.b[j, n]) for n in sizes)]), 0))
        m.size.add((0, total([(-1, m.y[j]), *((1, m.b[j, n]) for n in sizes)]), 0))


def add_one_type(m: ConcreteModel) -> None:
    """``x_k <= N_k z_k``, ``sum over k of z_k <= 1``: nodes of one type, for trainers whose shares are equal."""
    m.equal = [j for j, c in enumerate(m.problem.candidates) if c.one_type]
    m.z, m.one_type = Var(m.equal, m.types, domain=Binary), ConstraintList()
    for j in m.equal:
        m.one_type.add((None, total((1, m.z[j, k]) for k in m.types), 1))
        for k in m.types:
            m.one_type.add((None, total([(1, m.x[j, k]), (-m.x[j, k].ub, m.z[j, k])]), 0))


def add_pieces(m: ConcreteModel) -> None:
    """``sum over k of s_k x_k = sum over p of E w + tau``, ``tau <= L w``, ``sum over p of w = y``: it is in one
    piece of its curve (FreeTrain eqs 11, 12)."""
    m.w = Var(m.each_piece, bounds=(0, 1))
    m.tau, m.piece = Var(m.each_piece, domain=NonNegativeReals), ConstraintList()
    for j, its in enumerate(m.pieces):
        concave = all(after <= before for (*_, before), (*_, after) in pairwise(its))
        for p, (_, length, _, _) in enumerate(its):
            m.w[j, p].domain = NonNegativeReals if concave else Binary
            m.piece.add((None, total([(1, m.tau[j, p]), (-length, m.w[j, p])]), 0))
        reached = [(-start, m.w[j, p]) for p, (start, *_) in enumerate(its)]
        m.piece.add((0, total([*_effective(m, j), *reached, *((-1, m.tau[j, p]) for p in range(len(its)))]), 0))
        m.piece.add((0, total([(-1, m.y[j]), *((1, m.w[j, p]) for p in range(len(its)))]), 0))


def add_rescales(m: ConcreteModel) -> None:
    """``x_k - c_k <= N_k u``, ``c_k - x_k <= c_k d``, ``q >= O(c) Rup u``, ``q >= O(c) Rdw d``: the longer one of what
    a change takes (FreeTrain eqs 13, 14), where that costs anything."""
    m.costs = [_costs(c) for c in m.problem.candidates]
    m.u, m.d = Var(m.trainers, domain=Binary), Var(m.trainers, domain=Binary)
    m.q, m.rescale = Var(m.trainers, domain=NonNegativeReals), ConstraintList()
    for (j, c), k in ((each, k) for each in enumerate(m.problem.candidates) for k in m.types if any(m.costs[each[0]])):
        m.rescale.add((None, total([(1, m.x[j, k]), (-m.x[j, k].ub, m.u[j])]), c.held[k]))
        m.rescale.add((c.held[k], total([(1, m.x[j, k]), (c.held[k], m.d[j])]), None))
    for j, (up, down) in enumerate(m.costs):
        m.rescale.add((0, total([(1, m.q[j]), (-up, m.u[j])]), None))
        m.rescale.add((0, total([(1, m.q[j]), (-down, m.d[j])]), None))


def _costs(c: Candidate) -> tuple[float, float]:
    return c.value_on(c.held) * c.rescale_up_s, c.value_on(c.held) * c.rescale_down_s


def add_order(m: ConcreteModel) -> None:
    """``sum over k of s_k x_k`` falls among identical trainers: else a solver would visit each exchange of two."""
    m.order = ConstraintList()
    for before, after in (pair for kind in kinds(m.problem.candidates) for pair in pairwise(kind)):
        less = [(-speed, x) for speed, x in _effective(m, after)]
        m.order.add((0, total([*_effective(m, before), *less]), None))


def add_objective(m: ConcreteModel) -> None:
    """All trainers' values in ``t_fwd_s``, less the cost of rescaling (FreeTrain eq. 16), times ``scale``."""
    t_fwd_s = m.problem.t_fwd_s
    worth = [
        (j, p, t_fwd_s * value, t_fwd_s * slope) for (j, p) in m.each_piece for *_, value, slope in [m.pieces[j][p]]
    ]
    peak = max((value + abs(slope) * m.pieces[j][p][1] for j, p, value, slope in worth), default=0.0)
    m.scale = LARGEST_GAIN / peak if peak > NO_GAIN else 1.0
    gains = [(m.scale * a, v) for j, p, *both in worth for a, v in zip(both, (m.w[j, p], m.tau[j, p]), strict=True)]
    m.value = Objective(expr=total([*gains, *((-m.scale, m.q[j]) for j in m.trainers)]), sense=maximize)


def kinds(candidates: Sequence[Candidate]) -> list[list[int]]:
    """The candidates' indices, grouped by all but the trainer."""
    found: dict[Candidate, list[int]] = {}
    for j, c in enumerate(candidates):
        found.setdefault(replace(c, trainer=_ANY), []).append(j)
    return list(found.values())


def start(m: ConcreteModel, plan: Plan) -> None:
    """Set the variables to ``plan``, in which identical trainers change places so that they are in order."""
    given = [nodes for _, nodes in plan.by_type]
    for kind in kinds(m.problem.candidates):
        c = m.problem.candidates[kind[0]]
        for j, nodes in zip(kind, sorted((given[j] for j in kind), key=c.effective, reverse=True), strict=True):
            _start(m, j, c, nodes)


def _start(m: ConcreteModel, j: int, c: Candidate, nodes: ByType) -> None:
    effective, runs = c.effective(nodes), sum(nodes) > 0
    at = max(p for p, (start, *_) in enumerate(m.pieces[j]) if start <= effective)
    up = any(n > held for n, held in zip(nodes, c.held, strict=True))
    down = any(n < held for n, held in zip(nodes, c.held, strict=True))
    known = [(m.y[j], runs), (m.u[j], up), (m.d[j], down), (m.q[j], max(up * m.costs[j][0], down * m.costs[j][1]))]
    known += [(m.x[j, k], n) for k, n in enumerate(nodes)]
    for p, (begin, *_) in enumerate(m.pieces[j]):
        known += [(m.w[j, p], runs and p == at), (m.tau[j, p], effective - begin if p == at else 0.0)]
    known += [(m.b[j, n], n == sum(nodes)) for n in m.sizes.get(j, ())]
    known += [(m.z[j, k], n > 0) for k, n in enumerate(nodes) if c.one_type]
    for variable, value in known:
        variable.set_value(float(value), skip_validation=True)


def by_type(m: ConcreteModel) -> list[ByType]:
    """x_jk of each trainer, from the values that were read."""
    return [tuple(round(m.x[j, k].value) for k in m.types) for j in m.trainers]


def counts(m: ConcreteModel) -> list[int]:
    """How many nodes each trainer has."""
    return [sum(nodes) for nodes in by_type(m)]


def _nodes(m: ConcreteModel, j: int) -> Iterator[tuple[float, Any]]:
    return ((1, m.x[j, k]) for k in m.types)


def _effective(m: ConcreteModel, j: int) -> Iterator[tuple[float, Any]]:
    return ((speed, m.x[j, k]) for k, speed in enumerate(m.problem.candidates[j].speeds) if speed > 0)


def total(terms: Iterable[tuple[float, Any]]) -> LinearExpression:
    """The sum of ``coefficient * variable``."""
    pairs = list(terms)
    return linear([a for a, _ in pairs], [v for _, v in pairs])
