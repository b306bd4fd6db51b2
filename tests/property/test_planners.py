"""Every exact planner finds the optimum for any curves, sizes, costs and current counts."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pilot import planners
from pilot.core.curves.curve import Curve
from pilot.core.errors import UserError
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Candidate, PlanStatus, Problem
from pilot.planners import choice, dp, milp
from pilot.planners.solvers import find
from tests.property import model_nodes
from tests.unit.planners.problems import NAMES, best_plan, best_value, value

NODES = milp.Formulation("milp-nodes", model_nodes.build, model_nodes.counts)

rates = st.one_of(st.integers(0, 40).map(lambda tenths: tenths / 10), st.floats(0, 1000, allow_subnormal=False))
widths = st.one_of(st.integers(1, 6).map(float), st.floats(0.125, 6))


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Rising, flat and falling, with breakpoints at and between whole counts."""
    points, nodes = [], 0.0
    for width, rate in draw(st.lists(st.tuples(widths, rates), min_size=1, max_size=5)):
        nodes += width
        points.append((nodes, rate))
    return Curve.of(points)


@st.composite
def problems(draw: st.DrawFn, most_trainers: int = 4, most_nodes: int = 12, rescaling: bool = True) -> Problem:
    """Some trainers identical, some parked (holding fewer nodes than ``min_nodes``), some pools smaller than what is
    held.
    """
    shapes = draw(st.lists(curves(), min_size=1, max_size=2))
    costs = st.sampled_from((0.0, 1.0, 12.0, 60.0) if rescaling else (0.0,))
    candidates = []
    for name in NAMES[: draw(st.integers(1, most_trainers))]:
        low = draw(st.integers(1, 4))
        high, held = draw(st.integers(low, 9)), draw(st.integers(0, 9))
        curve = draw(st.sampled_from(shapes))
        some = tuple(sorted(draw(st.sets(st.integers(low, high)))))
        candidates.append(Candidate(name, min(held, high), low, high, curve, draw(costs), draw(costs), some))
    return Problem(draw(st.integers(0, most_nodes)), draw(st.sampled_from((1.0, 30.0, 120.0))), tuple(candidates))


@st.composite
def problems_with_turns(draw: st.DrawFn) -> Problem:
    """Some trainers must run, as many as fit together with the pins."""
    problem, candidates = draw(problems()), []
    left = problem.nodes
    for candidate in problem.candidates:
        least = candidate.sizes[0] if candidate.sizes else candidate.min_nodes
        sized = replace(candidate, min_nodes=least)
        if least <= left and draw(st.booleans()):
            sized = replace(sized, must_run=True, pin=draw(st.sampled_from((None, least))))
            left -= least
        candidates.append(sized)
    return replace(problem, candidates=tuple(candidates))


@settings(max_examples=40, deadline=None)
@given(problems_with_turns(), st.integers(0, 2))
def test_exact_planners_find_the_optimum_where_some_must_run(problem: Problem, ending: int) -> None:
    problem = replace(problem, ending=ending, ends_in_s=0.5 * problem.t_fwd_s)
    best = max(problem.objective(counts, late) for counts, late in every_plan_with_ending(problem))
    largest = max(problem.t_fwd_s * c.value_at(n) for c in problem.candidates for n in range(c.max_nodes + 1))
    for name in ("dp", "milp"):
        made = planners.make(name)(problem)
        assert problem.feasible(made.as_dict(), dict(made.ending)) or made.status is PlanStatus.KEPT
        assert abs(made.objective - best) <= 1e-9 * max(1.0, largest)
    free = replace(problem, candidates=tuple(c for c in problem.candidates if c.pin is None))
    if free.candidates == problem.candidates and any(c.most_within(problem.nodes) for c in problem.candidates):
        outcome = milp.solve(problem, deadline_s())
        assert outcome.proved and outcome.value is not None
        assert abs(outcome.value - best) <= SOLVERS_TOLERANCE * max(1.0, largest)


@pytest.mark.parametrize("name", planners.NAMES)
@settings(max_examples=50, deadline=None)
@given(problem=problems_with_turns())
def test_every_planner_lets_those_run_that_must(name: str, problem: Problem) -> None:
    counts = planners.make(name)(problem).as_dict()
    assert all(counts[c.trainer] >= c.min_nodes for c in problem.candidates if c.must_run)
    assert sum(counts.values()) <= problem.nodes


@settings(max_examples=100, deadline=None)
@given(problems_with_turns())
def test_where_dp_takes_too_long_those_run_that_must(problem: Problem) -> None:
    counts = planners.make("dp", limit_s=1e-9)(problem).as_dict()
    assert all(counts[c.trainer] >= c.min_nodes for c in problem.candidates if c.must_run)
    assert sum(counts.values()) <= problem.nodes


@given(problems_with_turns())
def test_the_fallback_lets_those_run_that_must(problem: Problem) -> None:
    unpinned = replace(problem, candidates=tuple(replace(c, pin=None) for c in problem.candidates))
    made = choice.best_known(unpinned, [], None, "dp")
    assert made.status is PlanStatus.KEPT or unpinned.feasible(made.as_dict())
    assert all(made.as_dict()[c.trainer] >= c.min_nodes for c in unpinned.candidates if c.must_run)


SOLVERS_TOLERANCE = 1e-6
"""A solver ends when no variable seems to be worth more than about 1e-7."""

HARDLY_WORTH_IT = Problem(
    3,
    1.0,
    (
        Candidate(NAMES[0], 0, 1, 2, Curve.of([(1, 1.0)]), 0.0, 0.0),
        Candidate(NAMES[1], 0, 1, 3, Curve.of([(1, 2.0**-23)]), 0.0, 0.0, (1, 2, 3)),
    ),
)
"""GLPK leaves the third node idle, and calls that optimal."""


def close(problem: Problem, objective: float, tolerance: float = 1e-9) -> bool:
    """Equal to the best of all plans, to ``tolerance`` of the largest number involved."""
    scale = max(problem.t_fwd_s * c.value_at(n) for c in problem.candidates for n in range(c.max_nodes + 1))
    return abs(objective - best_value(problem)) <= tolerance * max(1.0, scale)


def deadline_s() -> float:
    return time.monotonic() + 60.0


@settings(max_examples=400, deadline=None)
@given(problems())
def test_dp_finds_the_optimum_and_settles_its_ties(problem: Problem) -> None:
    made = dp.plan(problem)
    assert made.status is PlanStatus.OPTIMAL
    assert problem.feasible(made.as_dict())
    assert close(problem, made.objective)
    assert [name for name, _ in made.counts] == [c.trainer for c in problem.candidates]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=4), st.data())
def test_ties_go_to_the_fewest_changes_then_to_submission_order(
    sizes: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    line = Curve.of([(2, 0.2), (6, data.draw(st.sampled_from((0.6, 0.4, 0.2))))])
    costs = data.draw(st.sampled_from((0.0, 30.0)))
    candidates = (
        Candidate(name, held, low, low + more, line, costs, costs)
        for name, (held, low, more) in zip(NAMES, sizes, strict=False)
    )
    problem = Problem(data.draw(st.integers(0, 12)), 60.0, tuple(candidates))
    assert tuple(n for _, n in dp.plan(problem).counts) == best_plan(problem)


@pytest.mark.parametrize("solver", planners.SOLVERS)
@settings(max_examples=200, deadline=None)
@given(problem=problems())
@example(problem=HARDLY_WORTH_IT)
def test_milp_agrees_on_every_solver(solver: str, problem: Problem) -> None:
    check(problem, solver, milp.PIECES)


@pytest.mark.parametrize("solver", planners.SOLVERS)
@settings(max_examples=30, deadline=None)
@given(problem=problems(most_trainers=3, most_nodes=6))
def test_the_formulation_over_nodes_agrees_on_every_solver(solver: str, problem: Problem) -> None:
    check(problem, solver, NODES)


def check(problem: Problem, solver: str, formulation: milp.Formulation) -> None:
    """The solver alone, without the incumbent, and the plan."""
    try:
        find(solver)
    except UserError as error:
        pytest.skip(str(error))
    made = milp.plan(problem, 60.0, solver, formulation)
    assert made.status is PlanStatus.OPTIMAL
    assert made.counts == dp.plan(problem).counts
    if any(c.most_within(problem.nodes) for c in problem.candidates):
        outcome = milp.solve(problem, deadline_s(), solver, formulation)
        assert outcome.proved
        assert outcome.counts is not None
        assert close(problem, value(problem, outcome.counts), SOLVERS_TOLERANCE)


@settings(max_examples=60, deadline=None)
@given(problems(most_trainers=3, most_nodes=6), st.integers(1, 3), st.floats(0.5, 0.99))
def test_nodes_about_to_leave_are_shared_out_as_by_exhaustive_search(
    problem: Problem, ending: int, left: float
) -> None:
    problem = replace(problem, ending=ending, ends_in_s=left * problem.t_fwd_s)
    best = max(problem.objective(counts, late) for counts, late in every_plan_with_ending(problem))
    largest = max(problem.t_fwd_s * c.value_at(n) for c in problem.candidates for n in range(c.max_nodes + 1))
    for made in (dp.plan(problem), milp.plan(problem, 60.0)):
        assert made.status is PlanStatus.OPTIMAL
        assert problem.feasible(made.as_dict(), dict(made.ending))
        assert abs(made.objective - best) <= 1e-9 * max(1.0, largest)
    if any(c.most_within(problem.nodes) for c in problem.candidates):
        outcome = milp.solve(problem, deadline_s())
        assert outcome.proved
        assert outcome.value is not None
        assert abs(outcome.value - best) <= SOLVERS_TOLERANCE * max(1.0, largest)


def every_plan_with_ending(problem: Problem) -> Iterator[tuple[dict[TrainerId, int], dict[TrainerId, int]]]:
    names = [c.trainer for c in problem.candidates]
    for counts in itertools.product(*(range(problem.nodes + problem.ending + 1) for _ in names)):
        for late in itertools.product(*(range(min(n, problem.ending) + 1) for n in counts)):
            made = dict(zip(names, counts, strict=True)), {a: n for a, n in zip(names, late, strict=True) if n}
            if problem.feasible(*made):
                yield made


@st.composite
def pinned_problems(draw: st.DrawFn) -> Problem:
    """Some of the candidates are pinned, such that all pins fit."""
    problem = draw(problems(most_trainers=3, most_nodes=10))
    left, candidates = problem.nodes, []
    for c in problem.candidates:
        counts = range(c.min_nodes, min(left, c.max_nodes) + 1)
        pin = draw(st.sampled_from([None, *counts]))
        candidates.append(replace(c, pin=pin))
        left -= pin or 0
    return replace(problem, candidates=tuple(candidates))


@settings(max_examples=150, deadline=None)
@given(pinned_problems())
def test_planners_find_the_best_plan_that_honours_all_pins(problem: Problem) -> None:
    for planner in ("dp", "milp"):
        made = planners.make(planner)(problem)
        assert made.status is PlanStatus.OPTIMAL
        assert problem.feasible(made.as_dict())
        assert close(problem, made.objective), planner
        assert [name for name, _ in made.counts] == [c.trainer for c in problem.candidates]


@settings(max_examples=100, deadline=None)
@given(pinned_problems(), st.sampled_from(("equal-share", "milp", "dp")))
def test_planners_without_time_honour_pins_too(problem: Problem, planner: str) -> None:
    made = planners.make(planner, limit_s=1e-9)(problem)
    assert made.status is PlanStatus.KEPT or problem.feasible(made.as_dict())
    assert made.status is not PlanStatus.KEPT or made.as_dict() == problem.kept()
    assert all(made.as_dict()[c.trainer] == c.pin for c in problem.candidates if c.pin is not None)


@settings(max_examples=200, deadline=None)
@given(problems())
def test_trainers_want_their_nodes_in_the_best_plan_of_a_large_pool(problem: Problem) -> None:
    # A trainer has an allowed count or is parked: the remainder after a loss is trimmed at once.
    assume(all(c.current_nodes < c.min_nodes or c.allows(c.current_nodes) for c in problem.candidates))
    enough = replace(problem, nodes=sum(c.max_nodes for c in problem.candidates))
    wanted = {c.trainer: c.wants(problem.t_fwd_s) for c in problem.candidates}
    assert enough.feasible(wanted)
    assert all(wanted.values())
    assert close(enough, enough.objective(wanted))


@settings(max_examples=200, deadline=None)
@given(problems(rescaling=False))
def test_equal_share_is_never_better_where_rescaling_is_free(problem: Problem) -> None:
    shared, best = choice.plan(problem), dp.plan(problem)
    assert problem.feasible(shared.as_dict())
    assert shared.objective <= best.objective + 1e-9 * max(1.0, abs(best.objective))
