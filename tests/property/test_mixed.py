"""Plans for several types of nodes: feasible, within the bound, and as good as trying all of them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from benchmarks.planners import problem as one_type
from pilot import planners
from pilot.core.curves.curve import Curve
from pilot.core.errors import SolverError, UserError
from pilot.core.ids import TrainerId
from pilot.core.plan.between import interim
from pilot.core.plan.problem import Plan, PlanStatus, Problem
from pilot.planners import dp, milp, mixed_model, prices, solvers
from pilot.planners.choice import can_stay, plan_of
from tests.unit.planners.mixed_problems import (
    SOLVERS_TOLERANCE,
    TYPES,
    best_mixed,
    disagreement,
    mixed_candidate,
    mixed_problem,
    random_problem,
)

SEEDS = range(100)


def checked(problem: Problem, plan: Plan) -> float:
    """What the plan lacks to the best one, after checking what holds for all plans."""
    best = best_mixed(problem)
    margin = 1e-9 * max(
        1.0, *(abs(c.gain_on(c.most_of(problem.types_nodes), problem.t_fwd_s)) for c in problem.candidates)
    )
    if plan.status is PlanStatus.KEPT:
        assert can_stay(problem) and dict(plan.by_type) == problem.kept_by_type()
    else:
        assert problem.permits(plan)
    assert plan.counts == tuple((trainer, sum(nodes)) for trainer, nodes in plan.by_type)
    assert plan.objective == problem.objective_on(dict(plan.by_type)) and plan.objective <= best + margin
    assert plan.gap is not None and plan.objective + plan.gap * max(1.0, abs(plan.objective)) >= best - margin
    return max(0.0, best - plan.objective) / max(1.0, abs(best))


def test_plans_by_prices_are_feasible_and_within_the_bound_and_mostly_the_best() -> None:
    lack = [checked(problem, prices.plan(problem, "dp")) for problem in map(random_problem, SEEDS)]
    assert sum(part <= 1e-9 for part in lack) >= 0.9 * len(lack)


@pytest.mark.parametrize("name", sorted(planners.TYPED))
def test_planners_that_tell_types_apart_give_the_pins_and_let_those_run_that_must(name: str) -> None:
    plan = planners.make(name)
    lack = [checked(problem, plan(problem)) for problem in map(random_problem, SEEDS)]
    assert name != "milp" or max(lack) <= milp.NEGLIGIBLE_GAP_OF_TYPES


@pytest.mark.parametrize("solver", planners.SOLVERS)
def test_solvers_agree_with_an_enumeration(solver: str) -> None:
    """By themselves, from the plan by prices or from nothing. ``benchmarks.mixed_planners`` tries more problems."""
    for seed in SEEDS:
        assert disagreement(random_problem(seed), solver, from_prices=bool(seed % 2)) <= SOLVERS_TOLERANCE


@pytest.mark.parametrize("solver", planners.SOLVERS)
def test_identical_trainers_are_planned_for_like_others(solver: str) -> None:
    """The known plan gives the last of them most; in the model it is the first."""
    steep = Curve.of([(1, 1.0), (2, 3.0), (6, 4.0)])
    given = mixed_problem((3, 2), *[mixed_candidate((0, 0), (1.0, 0.5), curve=steep)] * 3)
    assert disagreement(given, solver, from_prices=True) <= SOLVERS_TOLERANCE
    known = plan_of(given, [(0, 1), (0, 1), (3, 0)], PlanStatus.INCUMBENT, None, "")
    m = mixed_model.build(given)
    mixed_model.start(m, known)
    assert mixed_model.counts(m) == [(3, 0), (0, 1), (0, 1)]


def test_a_solver_that_fails_leaves_the_plan_by_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(solvers._SOLVERS, "cbc", (fails, lambda: True, ""))
    for seed in range(5):
        checked(random_problem(seed), planners.make("milp", "cbc")(random_problem(seed)))


def fails(*_: object) -> solvers.SolverAnswer:
    raise SolverError("it fell")


def test_only_planners_that_tell_types_apart_take_several() -> None:
    problem = random_problem(0)
    for name in planners.NAMES:
        if name not in planners.TYPED:
            with pytest.raises(UserError, match=f"--planner {name} cannot tell types of nodes apart; use dp or milp"):
                planners.make(name)(problem)


def crowd(seed: int, types: int = 3) -> Problem:
    """Trainers on up to 16 nodes each, with a speed of their own on each type but the first."""
    choose = Random(seed)
    given = one_type(nodes=160, trainers=20, seed=seed, most=16)
    there = tuple(160 // types for _ in range(types))
    speeds = [(1.0, *(choose.uniform(0.2, 2.0) for _ in there[1:])) for _ in given.candidates]
    none, alike = (0,) * types, zip(given.candidates, speeds, strict=True)
    candidates = tuple(replace(c, current_nodes=0, held=none, speeds=speed) for c, speed in alike)
    return replace(given, nodes=sum(there), candidates=candidates, types=TYPES[:types], types_nodes=there)


@pytest.mark.parametrize("seed", range(6))
def test_a_crowd_gets_nearly_the_bound(seed: int) -> None:
    plan = prices.plan(crowd(seed), "dp")
    assert plan.gap is not None and plan.gap < 0.01
    assert crowd(seed).permits(plan)


def test_where_there_are_too_many_types_no_bound_is_claimed() -> None:
    """Eight types, of each of which a trainer that must run needs all nodes."""
    wide = replace(mixed_candidate((0,) * 8, (1.0,) * 8, low=8), must_run=True)
    other = mixed_candidate((0,) * 8, (1.0,) * 8)
    given = replace(mixed_problem((1,) * 8, wide, other), types=tuple("abcdefgh"))
    plan = prices.plan(given, "dp")
    assert plan.gap is None and dict(plan.by_type)[TrainerId("a")] == (1,) * 8


def test_types_on_which_all_are_as_fast_are_planned_as_well_as_one() -> None:
    for seed in range(6):
        given = crowd(seed)
        fair = replace(given, candidates=tuple(replace(c, speeds=(1.0,) * 3) for c in given.candidates))
        plain = tuple(replace(c, held=(), speeds=()) for c in given.candidates)
        best = dp.plan(replace(given, types=(), types_nodes=(), candidates=plain)).objective
        assert prices.plan(fair, "dp").objective == pytest.approx(best, rel=0.005)


def test_where_the_queue_is_shared_a_trainer_that_can_use_what_is_left_is_planned_for() -> None:
    """The first can use one type only, and is worth nearly all; the last is offered the other type."""
    first = mixed_candidate((0, 0), (1.0, 0.0))
    last = mixed_candidate((0, 0), (0.0, 1.0), curve=Curve.of([(1, 0.01)]))
    given = replace(mixed_problem((2, 2), first, first, last), queue_share=0.5)
    assert dict(planners.make("dp")(given).by_type)[TrainerId("c")] == (0, 2)


def test_between_decisions_a_waiting_trainer_gets_the_idle_nodes_on_which_it_is_fastest() -> None:
    runs, waits = mixed_candidate((1, 0), (1.0, 0.5)), mixed_candidate((0, 0), (1.0, 2.0), high=3)
    asked = interim(mixed_problem((4, 2), runs, waits))
    assert asked is not None
    assert dict(planners.make("dp")(asked).by_type) == {"a": (1, 0), "b": (1, 2)}
    for there, gets in (((4, 2), (3, 0)), ((3, 2), (0, 2))):
        asked = interim(mixed_problem(there, runs, replace(waits, one_type=True)))
        assert asked is not None
        assert dict(planners.make("dp")(asked).by_type) == {"a": (1, 0), "b": gets}
    assert interim(mixed_problem((4, 2), runs, replace(waits, speeds=(0.0, 0.0)))) is None


def test_between_decisions_pins_hold() -> None:
    asked = [problem for problem in map(interim, map(random_problem, SEEDS)) if problem is not None]
    assert all(problem.permits(planners.make("dp")(problem)) for problem in asked)
    runs, pinned = mixed_candidate((2, 0), (1.0, 1.0)), replace(mixed_candidate((0, 0), (2.0, 1.0)), pin=2)
    plan = planners.make("dp")(replace(mixed_problem((3, 1), runs, pinned), between=True))
    assert dict(plan.by_type) == {"a": (2, 0), "b": (1, 1)}, "idle nodes, if they suffice"
