"""The problem with several types of nodes in Pyomo, one function per family of constraints.

Trainer j gets x_jk of the N_k nodes of type k, holds c_jk, and computes s_jk times as fast there as on its reference
type (0: it cannot use the type). Its curve has pieces p that start at effective number E_p, where it is worth V_p, and
are L_p long, with slope sigma_p. Binaries say whether it has nodes (y), in which piece it is (w), and whether it gets
(u) or gives back (d) any; its rescale costs q. Where a curve is concave, w need not be binary: the best mixture of
pieces is the curve itself. The numbers are FreeTrain's equations that each family is for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pyomo.core import maximize
from pyomo.core.expr.numeric_expr import LinearExpression
from pyomo.environ import Binary, ConcreteModel, ConstraintList, NonNegativeIntegers, NonNegativeReals, Objective, Var

from pilot.core.plan.problem import ByType, Candidate, Plan, Problem
from pilot.planners.choice import NO_GAIN
from pilot.planners.model import LARGEST_GAIN, kinds, linear


def build(problem: Problem) -> ConcreteModel:
    """The model, with the ``problem``, the ``pieces`` (E, L, V, sigma) of each trainer, and the indices of all."""
    m = ConcreteModel()
    m.problem, m.constant = replace(problem, candidates=tuple(c.free_of_pin() for c in problem.candidates)), 0.0
    m.trainers, m.types = range(len(problem.candidates)), range(len(problem.types))
    m.pieces = [pieces(c, problem.nodes) for c in m.problem.candidates]
    m.each_piece = [(j, p) for j, its in enumerate(m.pieces) for p in range(len(its))]
    for add in (add_nodes, add_capacity, add_sizes, add_one_type, add_pieces, add_rescales, add_order, add_objective):
        add(m)
    return m


def pieces(c: Candidate, nodes: int) -> list[tuple[float, float, float, float]]:
    """The pieces of its curve as far as it can get; the last one goes on per node."""
    most = max(c.speeds) * min(c.max_nodes, nodes)
    rows = zip(c.value.nodes, (*c.value.nodes[1:], most), c.value.per_s, c.value.slopes(), strict=True)
    return [(start, min(end, most) - start, value, slope) for start, end, value, slope in rows if start <= most]


def add_nodes(m: ConcreteModel) -> None:
    """``Nmin y <= sum over k of x_k <= Nmax y``: it has no nodes or an allowed number (FreeTrain eq. 3), none of types
    that it cannot use; y is 1 for one that must run."""
    m.x, m.y = Var(m.trainers, m.types, domain=NonNegativeIntegers), Var(m.trainers, domain=Binary)
    m.between = ConstraintList()
    for j, c in enumerate(m.problem.candidates):
        for k, there in enumerate(m.problem.types_nodes):
            m.x[j, k].setub(min(c.max_nodes, there) if c.speeds[k] > 0 else 0)
        m.y[j].setlb(int(c.must_run))
        m.between.add((0, total([*_nodes(m, j), (-c.min_nodes, m.y[j])]), None))
        m.between.add((None, total([*_nodes(m, j), (-c.max_nodes, m.y[j])]), 0))


def add_capacity(m: ConcreteModel) -> None:
    """``sum over j of x_jk <= N_k``: each node serves at most one trainer (FreeTrain eq. 5, summed over a type)."""
    m.capacity = ConstraintList()
    for k, there in enumerate(m.problem.types_nodes):
        m.capacity.add((None, total((1, m.x[j, k]) for j in m.trainers), there))


def add_sizes(m: ConcreteModel) -> None:
    """``sum over k of x_k = sum of size * b_size``, ``sum of b_size = y``: one of some numbers (FreeTrain eq. 3)."""
    m.sizes = {j: c.sizes for j, c in enumerate(m.problem.candidates) if c.sizes}
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
    m.w, m.tau = Var(m.each_piece, bounds=(0, 1)), Var(m.each_piece, domain=NonNegativeReals)
    m.piece = ConstraintList()
    for j, its in enumerate(m.pieces):
        concave = all(after <= before for (*_, before), (*_, after) in pairwise(its))
        reached, inside = list(_effective(m, j)), [(-1.0, m.y[j])]
        for p, (start, length, _, _) in enumerate(its):
            m.w[j, p].domain = NonNegativeReals if concave else Binary
            m.piece.add((None, total([(1, m.tau[j, p]), (-length, m.w[j, p])]), 0))
            reached += [(-start, m.w[j, p]), (-1.0, m.tau[j, p])]
            inside.append((1.0, m.w[j, p]))
        m.piece.add((0, total(reached), 0))
        m.piece.add((0, total(inside), 0))


def add_rescales(m: ConcreteModel) -> None:
    """``x_k - c_k <= N_k u``, ``c_k - x_k <= c_k d``, ``q >= O(c) Rup u``, ``q >= O(c) Rdw d``: the longer one of what
    a change takes (FreeTrain eqs 13, 14)."""
    m.u, m.d = Var(m.trainers, domain=Binary), Var(m.trainers, domain=Binary)
    m.q, m.rescale = Var(m.trainers, domain=NonNegativeReals), ConstraintList()
    for j, c in enumerate(m.problem.candidates):
        up, down = (c.value_on(c.held) * seconds for seconds in (c.rescale_up_s, c.rescale_down_s))
        m.rescale.add((0, total([(1, m.q[j]), (-up, m.u[j])]), None))
        m.rescale.add((0, total([(1, m.q[j]), (-down, m.d[j])]), None))
        for k, held in enumerate(c.held if up or down else ()):
            m.rescale.add((None, total([(1, m.x[j, k]), (-m.x[j, k].ub, m.u[j])]), held))
            m.rescale.add((held, total([(1, m.x[j, k]), (held, m.d[j])]), None))


def add_order(m: ConcreteModel) -> None:
    """``sum over k of s_k x_k`` falls among identical trainers: else a solver would visit each exchange of two."""
    m.order = ConstraintList()
    for before, after in (pair for kind in kinds(m.problem.candidates) for pair in pairwise(kind)):
        less = [(-speed, x) for speed, x in _effective(m, after)]
        m.order.add((0, total([*_effective(m, before), *less]), None))


def add_objective(m: ConcreteModel) -> None:
    """All trainers' values in ``t_fwd_s``, less the cost of rescaling (FreeTrain eq. 16), times ``scale``."""
    t_fwd_s, each = m.problem.t_fwd_s, [(i, m.pieces[i[0]][i[1]]) for i in m.each_piece]
    peak = t_fwd_s * max((value + abs(slope) * length for _, (_, length, value, slope) in each), default=0.0)
    m.scale = LARGEST_GAIN / peak if peak > NO_GAIN else 1.0
    gains = [(m.scale * t_fwd_s * value, m.w[i]) for i, (_, _, value, _) in each]
    gains += [(m.scale * t_fwd_s * slope, m.tau[i]) for i, (*_, slope) in each]
    m.value = Objective(expr=total([*gains, *((-m.scale, m.q[j]) for j in m.trainers)]), sense=maximize)


def start(m: ConcreteModel, plan: Plan) -> None:
    """Set x to ``plan``, in which identical trainers change places so that they are in order; the rest follows."""
    for kind in kinds(m.problem.candidates):
        effective = m.problem.candidates[kind[0]].effective
        for j, nodes in zip(kind, sorted((plan.by_type[j][1] for j in kind), key=effective, reverse=True), strict=True):
            for k in m.types:
                m.x[j, k].set_value(nodes[k], skip_validation=True)


def counts(m: ConcreteModel) -> list[ByType]:
    """x_jk of each trainer, from the values that were read."""
    return [tuple(round(m.x[j, k].value) for k in m.types) for j in m.trainers]


def _nodes(m: ConcreteModel, j: int) -> Iterator[tuple[float, Any]]:
    return ((1.0, m.x[j, k]) for k in m.types)


def _effective(m: ConcreteModel, j: int) -> Iterator[tuple[float, Any]]:
    return ((speed, m.x[j, k]) for k, speed in enumerate(m.problem.candidates[j].speeds) if speed > 0)


def total(terms: Iterable[tuple[float, Any]]) -> LinearExpression:
    """The sum of ``coefficient * variable``."""
    pairs = list(terms)
    return linear([a for a, _ in pairs], [v for _, v in pairs])
