"""Sia's ILP against an enumeration, and its rules one by one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from benchmarks import sia
from pilot.core.curves.curve import Curve
from pilot.core.curves.mixed import mixed_rate
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Candidate, PlanStatus, Problem, fits_in
from pilot.planners.solvers import NOTHING

CURVE = Curve.of([(1, 1.0), (2, 1.9), (4, 3.5), (8, 6.0)])


def candidate(
    name: str,
    speeds: Sequence[float] = (1.0, 0.5),
    held: Sequence[int] = (0, 0),
    min_nodes: int = 1,
    max_nodes: int = 8,
    trained_s: float = 0.0,
) -> Candidate:
    return Candidate(
        TrainerId(name),
        sum(held),
        min_nodes,
        max_nodes,
        CURVE,
        rescale_up_s=20.0,
        rescale_down_s=10.0,
        trained_s=trained_s,
        held=tuple(held),
        speeds=tuple(speeds),
    )


def problem(*candidates: Candidate, nodes: tuple[int, ...] = (4, 4)) -> Problem:
    return Problem(sum(nodes), 120.0, candidates, types=tuple("abc"[: len(nodes)]), types_nodes=nodes)


def given(made: Problem) -> dict[str, tuple[int, ...]]:
    plan = sia.plan(made, 10.0)
    assert made.permits(plan) and plan.gap is None
    return {str(name): nodes for name, nodes in plan.by_type}


def worth(c: Candidate, nodes: Sequence[int]) -> float:
    """The term of the docstring's objective, in full."""
    chosen = [(k, n) for k, n in enumerate(nodes) if n]
    if not chosen:
        return 0.0
    ((kind, n),) = chosen
    least = min(mixed_rate(c.value, c.min_nodes, c.min_nodes * speed) for speed in c.speeds if speed)
    goodput = c.min_nodes * mixed_rate(c.value, n, n * c.speeds[kind]) / least
    moves = c.current_nodes and tuple(nodes) != c.held and c.trained_s >= c.rescale_up_s
    factor = c.trained_s / (c.trained_s + c.rescale_up_s) if moves else 1.0
    return float(1.1 - (factor * goodput) ** -0.5)


def test_its_plans_are_the_optimum_of_an_enumeration() -> None:
    for seed in range(20):
        draw = Random(seed)
        made = problem(
            *(
                candidate(
                    f"t{i}",
                    (1.0, draw.choice((0.0, 0.3, 0.8, 1.5))),
                    draw.choice(((0, 0), (1, 0), (2, 0))),
                    min_nodes=draw.choice((1, 2)),
                    trained_s=draw.choice((10.0, 60.0, 600.0)),
                )
                for i in range(3)
            ),
            nodes=(6, 3),
        )
        choices = []
        for c in made.candidates:
            most = max(c.min_nodes, 2 * c.current_nodes)
            sizes = range(c.min_nodes, most + 1)
            choices.append([(0, 0), *((n, 0) for n in sizes), *((0, n) for n in sizes if c.speeds[1])])
        best = max(
            sum(map(worth, made.candidates, some))
            for some in itertools.product(*choices)
            if fits_in(some, made.types_nodes)
        )
        chosen = given(made)
        assert sum(worth(c, chosen[c.trainer]) for c in made.candidates) == pytest.approx(best, abs=1e-6)


def test_a_trainer_starts_on_its_fewest_nodes_and_doubles_at_most() -> None:
    assert given(problem(candidate("t"))) == {"t": (1, 0)}
    assert given(problem(candidate("t", held=(1, 0), trained_s=1e6))) == {"t": (2, 0)}
    assert given(problem(candidate("t", held=(2, 0), trained_s=1e6))) == {"t": (4, 0)}


def test_nodes_are_of_one_type_and_only_of_those_that_it_can_use() -> None:
    assert given(problem(candidate("t", (0.0, 0.1)))) == {"t": (0, 1)}
    assert given(problem(candidate("t", held=(4, 0), trained_s=1e6))) == {"t": (4, 0)}


def test_who_has_just_started_does_not_move_for_a_little() -> None:
    young, old = (candidate("t", (1.0, 1.3), (1, 0), max_nodes=1, trained_s=of) for of in (20.0, 2000.0))
    assert given(problem(young)) == {"t": (1, 0)}
    assert given(problem(old)) == {"t": (0, 1)}


def test_pins_and_turns_are_honoured_for_several_types() -> None:
    pinned, turn = replace(candidate("p"), pin=3), replace(candidate("m"), must_run=True)
    plan = sia.planner(problem(candidate("t"), pinned, turn, nodes=(3, 1)))
    assert dict(plan.by_type) == {"t": (0, 0), "p": (3, 0), "m": (0, 1)}


def test_with_one_type_its_plans_are_counts() -> None:
    made = Problem(3, 120.0, (Candidate(TrainerId("t"), 0, 2, 4, CURVE, 20.0, 10.0),))
    plan = sia.planner(made)
    assert (plan.as_dict(), plan.by_type, plan.status) == ({"t": 2}, (), PlanStatus.INCUMBENT)
    assert plan.objective == made.objective({TrainerId("t"): 2})


def test_without_a_solution_in_time_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sia, "find", lambda _: lambda *_: NOTHING)
    plan = sia.plan(problem(candidate("t", held=(2, 0)), candidate("u")), math.inf)
    assert (plan.status, dict(plan.by_type)) == (PlanStatus.KEPT, {"t": (2, 0), "u": (0, 0)})
