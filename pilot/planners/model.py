"""The per-piece formulation of FreeTrain's problem (§3) in Pyomo, one function per family of constraints.

Nodes are interchangeable and any counts that fit the pool can be reached without migration (eqs 6-10: a trainer that
grows keeps its nodes, one that shrinks gives some back), so the model has counts instead of nodes. Each trainer j has one
binary per linear piece p of its gain (:mod:`pilot.planners.pieces`): ``use[p] = 1`` says that N_j lies in piece p, and
``more[p]`` how many nodes it has beyond the piece's first count::

    maximize  sum over p of  gain_p * use[p] + slope_p * more[p]                                  (16)
    subject to  more[p] <= (last_p - first_p) * use[p]               for each piece               (3, 11)
                sum over j's pieces of use[p] <= 1                   for each trainer             (3, 12)
                sum over p of  first_p * use[p] + more[p] <= |N|                                  (5)

A trainer without a piece has no nodes; gains are counted from that, so a constant is missing from the objective.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from pyomo.core.expr.numeric_expr import LinearExpression
from pyomo.environ import Binary, ConcreteModel, Constraint, NonNegativeIntegers, Objective, Var, maximize

from pilot.core.problem import Candidate, Problem
from pilot.planners.pieces import Piece, pieces

LARGEST_GAIN = 1e6
"""The objective is scaled so that its largest coefficient is this: solvers' tolerances are absolute."""

TIE = 1e-10
"""What an unchanged count is worth, as a part of the largest gain: it decides between plans that are worth the same."""


def build(problem: Problem) -> ConcreteModel:
    """The model, with ``pieces`` (one list for all trainers) and ``ends`` (where in it the j-th trainer's end)."""
    m = ConcreteModel()
    m.pieces, m.ends = [], [0]
    for candidate in problem.candidates:
        m.pieces += pieces(candidate, problem.t_fwd_s, problem.nodes)
        m.ends.append(len(m.pieces))
    add_sizes(m)
    add_one_piece(m)
    add_capacity(m, problem)
    add_objective(m, problem)
    return m


def add_sizes(m: ConcreteModel) -> None:
    """``more[p] <= (last_p - first_p) * use[p]``: N_j is 0 or one of the piece's counts (FreeTrain eqs 3, 11)."""
    wide = [p for p, piece in enumerate(m.pieces) if piece.last > piece.first]
    m.use = Var(range(len(m.pieces)), domain=Binary)
    m.more = Var(wide, domain=NonNegativeIntegers)

    def size(m: ConcreteModel, p: int) -> tuple[None, LinearExpression, int]:
        return None, _linear([1, m.pieces[p].first - m.pieces[p].last], [m.more[p], m.use[p]]), 0

    m.size = Constraint(wide, rule=size)


def add_one_piece(m: ConcreteModel) -> None:
    """Each trainer has at most one piece: the two neighbours of eq. 11's special ordered set (FreeTrain eqs 3, 12)."""
    some = [j for j, (first, end) in enumerate(pairwise(m.ends)) if end > first]

    def one_piece(m: ConcreteModel, j: int) -> tuple[None, LinearExpression, int]:
        use = [m.use[p] for p in range(m.ends[j], m.ends[j + 1])]
        return None, _linear([1] * len(use), use), 1

    m.one_piece = Constraint(some, rule=one_piece)


def add_capacity(m: ConcreteModel, problem: Problem) -> None:
    """Each node serves at most one trainer (FreeTrain eq. 5, summed over the nodes)."""
    firsts = [piece.first for piece in m.pieces]
    nodes = _linear([*firsts, *[1] * len(m.more)], [*m.use.values(), *m.more.values()])
    m.capacity = Constraint(expr=nodes <= problem.nodes)


def add_objective(m: ConcreteModel, problem: Problem) -> None:
    """What all trainers gain in ``t_fwd_s``, less what rescaling costs (FreeTrain eq. 16); fewest changes in a tie.

    ``constant`` is what is gained (not positive) where nobody has nodes; ``scale`` times what is beyond it is maximized.
    """
    idle = [c.gain(0, problem.t_fwd_s) for c in problem.candidates]
    more = [piece.gain - idle[j] for j, piece in _by_trainer(m)]
    peak = max(abs(gain) + piece.slope * (piece.last - piece.first) for gain, piece in zip(more, m.pieces, strict=True))
    m.constant, m.scale = sum(idle), LARGEST_GAIN / peak if peak > 0 else 1.0
    stay = [_stay(problem.candidates[j], piece) for j, piece in _by_trainer(m)]
    use = [m.scale * gain + LARGEST_GAIN * TIE * s for gain, s in zip(more, stay, strict=True)]
    slopes = [m.scale * m.pieces[p].slope for p in m.more]
    m.value = Objective(expr=_linear([*use, *slopes], [*m.use.values(), *m.more.values()]), sense=maximize)


def counts(m: ConcreteModel) -> list[int]:
    """N_j of each trainer (FreeTrain eq. 2), from the values that were read from the solver."""
    nodes = [m.pieces[p].first * round(m.use[p].value) for p in m.use]
    for p in m.more:
        nodes[p] += round(m.more[p].value)
    return [sum(nodes[first:end]) for first, end in pairwise(m.ends)]


def _by_trainer(m: ConcreteModel) -> Iterator[tuple[int, Piece]]:
    for j, (first, end) in enumerate(pairwise(m.ends)):
        for piece in m.pieces[first:end]:
            yield j, piece


def _stay(candidate: Candidate, piece: Piece) -> int:
    """What choosing the piece does to the number of unchanged trainers."""
    if candidate.current_nodes == 0:
        return -1
    return 1 if piece.first == piece.last == candidate.current_nodes else 0


def _linear(coefficients: Sequence[float], variables: Sequence[Any]) -> LinearExpression:
    """``sum(c * v)``, made at once: Pyomo's operators would take most of a solve's time."""
    return LinearExpression(constant=0, linear_coefs=coefficients, linear_vars=variables)
