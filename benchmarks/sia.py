"""The ILP of Sia (Jayaram Subramanya et al., SOSP 2023, §3) as a planner, for benchmarks/mixed.py.

Each trainer gets at most one *configuration* j, a number n_j of nodes of one type k_j::

    max sum_ij A_ij (lambda - (r_ij G_ij)^p)    sum_j A_ij <= 1    sum_(i, k_j = k) n_j A_ij <= N_k

G_ij is the trainer's rate, in units of its least rate on any configuration, times its fewest nodes. r_ij discounts
restarts: T / (T + R_up) where a trainer that has trained for T, at least R_up, changes its configuration, else 1. A
trainer starts on its fewest nodes and at most doubles them from round to round; rounds are 60 s. Between two rounds
waiting trainers get idle nodes, as with all planners that have a cadence.

The paper's goodput is the rate here, since batches do not change; its T is an age, from which earlier restarts are
subtracted, which problems do not have; and its configurations have few sizes, where all that are allowed are tried.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import sub
from pathlib import Path

from pilot.core.curves.mixed import mixed_rate
from pilot.core.plan import between
from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem, place
from pilot.planners.choice import can_stay, plan_of
from pilot.planners.solvers import find

POWER, LAMBDA = -0.5, 1.1
"""The paper's p, which balances fairness and efficiency, and its penalty for trainers without nodes."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """The configuration of ``nodes`` nodes of type ``kind`` for the candidate at ``place``."""

    place: int
    kind: int
    nodes: int
    worth: float


def planner(problem: Problem) -> Plan:
    """The plan of the ILP, or the one between two rounds."""
    return between.plan(problem) if problem.between else plan(problem, 10.0, "highs")


def plan(problem: Problem, limit_s: float, solver: str = "cbc") -> Plan:
    """The plan of the ILP; its distance from the optimum of eq. 16 is not known. Without a solution in time nothing
    changes. Trainers that must run, or are pinned, are no part of the ILP."""
    started_s, typed = time.monotonic(), problem.with_types()
    fixed = [at for at, c in enumerate(typed.candidates) if not c.allows(0)]
    there, nodes = list(typed.types_nodes), [(0,) * len(typed.types)] * len(typed.candidates)
    for at, of_type in zip(fixed, place([typed.candidates[at] for at in fixed], typed.types_nodes) or (), strict=False):
        there, nodes[at] = list(map(sub, there, of_type)), of_type
    free = [at for at in range(len(nodes)) if at not in fixed]
    choices = [choice for at in free for choice in _choices(at, typed.candidates[at], there)]
    chosen, status = _solve(choices, there, limit_s, solver) if choices else [], PlanStatus.INCUMBENT
    if chosen is None and can_stay(problem):
        nodes, status = [c.held for c in typed.candidates], PlanStatus.KEPT
    for choice in chosen or ():
        nodes[choice.place] = tuple(choice.nodes if kind == choice.kind else 0 for kind in range(len(there)))
    made = plan_of(problem, nodes if problem.types else [n for (n,) in nodes], status, None, "sia")
    return replace(made, solve_s=time.monotonic() - started_s)


def _choices(at: int, c: Candidate, there: Sequence[int]) -> Iterator[_Choice]:
    """What the candidate may get, and what it is worth."""
    most = min(c.max_nodes, max(c.min_nodes, 2 * c.current_nodes))
    rates = {
        (kind, n): rate
        for kind, (speed, nodes) in enumerate(zip(c.speeds, there, strict=True))
        for n in range(c.min_nodes, min(nodes, most) + 1)
        if c.allows(n) and (rate := mixed_rate(c.value, n, n * speed)) > 0
    }
    least = min(rates.values(), default=0.0) / c.min_nodes
    moved = c.current_nodes > 0 and c.trained_s >= c.rescale_up_s > 0
    restart = c.trained_s / (c.trained_s + c.rescale_up_s) if moved else 1.0
    for (kind, n), rate in rates.items():
        stays = c.held[kind] == n == c.current_nodes
        yield _Choice(at, kind, n, LAMBDA - (rate / least * (1.0 if stays else restart)) ** POWER)


def _solve(choices: Sequence[_Choice], there: Sequence[int], limit_s: float, solver: str) -> list[_Choice] | None:
    """The best choices; None: no solution was found."""
    one_each, capacity = dict[int, list[str]](), dict[int, list[str]]()
    for number, choice in enumerate(choices):
        one_each.setdefault(choice.place, []).append(f"x{number}")
        capacity.setdefault(choice.kind, []).append(f"{choice.nodes} x{number}")
    worth = _sum(f"{choice.worth:+.9g} x{number}" for number, choice in enumerate(choices))
    rows = [f"one{place}: {_sum(names)} <= 1" for place, names in one_each.items()]
    rows += [f"of{kind}: {_sum(terms)} <= {there[kind]}" for kind, terms in capacity.items()]
    names = "\n".join(f"x{number}" for number in range(len(choices)))
    with tempfile.TemporaryDirectory(prefix="pilot-plan-") as directory:
        lp = Path(directory, "plan.lp")
        lp.write_text("\n".join(["Maximize", f"worth: {worth}", "Subject To", *rows, "Binary", names, "End\n"]))
        values = find(solver)(lp, limit_s, {}, 0.0).values
    return None if values is None else [c for number, c in enumerate(choices) if values.get(f"x{number}", 0.0) > 0.5]


def _sum(terms: Iterable[str]) -> str:
    """A term a line: solvers read no lines of any length."""
    return "\n".join(term if term[0] in "+-" else f"+{term}" for term in terms)
