"""The per-piece formulation of FreeTrain's problem (§3) in Pyomo, one function per family of constraints.

Nodes are interchangeable and any counts that fit the pool can be reached without migration (eqs 6-10: a trainer that
grows keeps its nodes, one that shrinks gives some back), so the model has counts instead of nodes.

The gain of a trainer consists of linear pieces (:mod:`pilot.planners.choice`); a trainer without a piece has no nodes.
One binary per trainer and piece would do, but identical trainers can be exchanged, and a solver would visit each
exchange (hyper-parameter trials: minutes instead of a tenth of a second). So trainers of one kind share
their pieces: ``use[p]`` is how many of them lie in piece p, a binary where the kind has one trainer, and ``more[p]``
how many nodes these have together beyond the piece's first count. As a piece is linear, it does not matter who has
them::

    maximize    sum over p of  gain_p * use[p] + slope_p * more[p]                            (16)
    subject to  more[p] <= (last_p - first_p) * use[p]         for each piece                 (3, 11)
                sum over a kind's pieces of use[p] <= trainers of that kind                   (3, 12)
                sum over p of  first_p * use[p] + more[p] <= |N|                              (5)

Gains are relative to the gain without nodes. If some nodes are about to leave (:mod:`pilot.core.pool.pool`), there are
pieces with each number of them beside those without, and one more capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from pyomo.core.expr.numeric_expr import LinearExpression
from pyomo.environ import ConcreteModel, Constraint, NonNegativeIntegers, Objective, Var, maximize, value

from pilot.core.errors import SolverError
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Candidate, Plan, Problem
from pilot.planners.choice import NO_GAIN, late_pieces, pieces

_ANY = TrainerId("")
LARGEST_GAIN = 1e6
"""The objective is scaled so that its largest coefficient is this: solvers' tolerances are absolute."""


def build(problem: Problem) -> ConcreteModel:
    """The model, with ``kinds`` (indices of the candidates that are alike) and ``pieces`` of (kind, piece)."""
    m = ConcreteModel()
    m.candidates, m.kinds = problem.candidates, kinds(problem.candidates)
    firsts = [problem.candidates[kind[0]] for kind in m.kinds]
    m.pieces = [(k, p) for k, c in enumerate(firsts) for p in pieces(c, problem.t_fwd_s, problem.nodes)]
    m.pieces += [(k, p) for k, c in enumerate(firsts) for p in late_pieces(c, problem)]
    add_sizes(m)
    add_one_piece(m)
    add_capacity(m, problem)
    add_objective(m, problem)
    return m


def add_sizes(m: ConcreteModel) -> None:
    """``more[p] <= (last_p - first_p) * use[p]``: N_j is 0 or one of the piece's counts (FreeTrain eqs 3, 11)."""
    wide = [i for i, (_, piece) in enumerate(m.pieces) if piece.last > piece.first]
    m.use = Var(range(len(m.pieces)), domain=NonNegativeIntegers, bounds=lambda m, i: (0, len(m.kinds[m.pieces[i][0]])))
    m.more = Var(wide, domain=NonNegativeIntegers)

    def size(m: ConcreteModel, i: int) -> tuple[None, LinearExpression, int]:
        _, piece = m.pieces[i]
        return None, linear([1, piece.first - piece.last], [m.more[i], m.use[i]]), 0

    m.size = Constraint(wide, rule=size)


def add_one_piece(m: ConcreteModel) -> None:
    """Each trainer has at most one piece: the two neighbours of eq. 11's special ordered set (FreeTrain eqs 3, 12). One
    that must run has one."""
    of_kind: dict[int, list[Any]] = {}
    for i, (k, _) in enumerate(m.pieces):
        of_kind.setdefault(k, []).append(m.use[i])

    def one_piece(m: ConcreteModel, k: int) -> tuple[int | None, LinearExpression, int]:
        all_of_them = len(m.kinds[k])
        least = all_of_them if m.candidates[m.kinds[k][0]].must_run else None
        return least, linear([1] * len(of_kind[k]), of_kind[k]), all_of_them

    m.one_piece = Constraint(list(of_kind), rule=one_piece)


def add_capacity(m: ConcreteModel, problem: Problem) -> None:
    """Each node serves at most one trainer (FreeTrain eq. 5, summed over the nodes)."""
    firsts = [piece.first for _, piece in m.pieces]
    nodes = linear([*firsts, *[1] * len(m.more)], [*m.use.values(), *m.more.values()])
    m.capacity = Constraint(expr=nodes <= problem.nodes)
    if late := [i for i, (_, piece) in enumerate(m.pieces) if piece.late]:
        ending = linear([m.pieces[i][1].late for i in late], [m.use[i] for i in late])
        m.ending = Constraint(expr=ending <= problem.ending)


def add_objective(m: ConcreteModel, problem: Problem) -> None:
    """All trainers' gain in ``t_fwd_s``, less the cost of rescaling (FreeTrain eq. 16).

    The objective is ``scale`` times the gain beyond ``constant``, the gain if no trainer has nodes.
    """
    idle = [problem.candidates[kind[0]].gain(0, problem.t_fwd_s) for kind in m.kinds]
    gains = [piece.gain - idle[k] for k, piece in m.pieces]
    peak = max(abs(g) + abs(p.slope) * (p.last - p.first) for g, (_, p) in zip(gains, m.pieces, strict=True))
    m.constant = sum(gain * len(kind) for gain, kind in zip(idle, m.kinds, strict=True))
    m.scale = LARGEST_GAIN / max(peak, NO_GAIN)
    use = [m.scale * gain for gain in gains]
    more = [m.scale * m.pieces[i][1].slope for i in m.more]
    m.value = Objective(expr=linear([*use, *more], [*m.use.values(), *m.more.values()]), sense=maximize)


def start(m: ConcreteModel, plan: Plan) -> None:
    """Set the variables to ``plan``."""
    late = dict(plan.ending)
    stays = [n - late.get(trainer, 0) for trainer, n in plan.counts]
    for variable in (*m.use.values(), *m.more.values()):
        variable.set_value(0, skip_validation=True)
    for i, (k, piece) in enumerate(m.pieces):
        alike = [j for j in m.kinds[k] if late.get(m.candidates[j].trainer, 0) == piece.late]
        inside = [stays[j] for j in alike if piece.first <= stays[j] <= piece.last and stays[j] + piece.late]
        m.use[i].set_value(len(inside), skip_validation=True)
        if i in m.more:
            m.more[i].set_value(sum(inside) - piece.first * len(inside), skip_validation=True)


def counts(m: ConcreteModel) -> list[int]:
    """N_j of each trainer (FreeTrain eq. 2), from the values that were read; of a kind, earlier ones have more. Raises
    SolverError if the values do not solve the model."""
    return [stays + late for stays, late in _shares(m)]


def ending(m: ConcreteModel) -> list[int]:
    """How many ending nodes each trainer has; raises as :func:`counts` does."""
    return [late for _, late in _shares(m)]


def _shares(m: ConcreteModel) -> list[tuple[int, int]]:
    """The nodes that stay, and those that leave soon, of each trainer."""
    found = [(0, 0)] * len(m.candidates)
    waiting = [iter(kind) for kind in m.kinds]
    for i, (k, piece) in reversed(list(enumerate(m.pieces))):
        beyond = round(m.more[i].value) if i in m.more else 0
        for j in islice(waiting[k], round(m.use[i].value)):
            stays = piece.first + min(beyond, piece.last - piece.first)
            beyond -= stays - piece.first
            found[j] = (stays, piece.late)
    if sum(stays for stays, _ in found) != round(value(m.capacity.body)):
        raise SolverError("its values do not solve the model")
    return found


def kinds(candidates: Sequence[Candidate]) -> list[list[int]]:
    """The candidates' indices, grouped by all but the trainer."""
    found: dict[Candidate, list[int]] = {}
    for j, c in enumerate(candidates):
        found.setdefault(replace(c, trainer=_ANY), []).append(j)
    return list(found.values())


def linear(coefficients: Sequence[float], variables: Sequence[Any]) -> LinearExpression:
    """``sum(c * v)``, made at once: Pyomo's operators would take most of a solve's time."""
    return LinearExpression(constant=0, linear_coefs=coefficients, linear_vars=variables)
