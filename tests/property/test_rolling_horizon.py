"""Huawei's rolling horizon: both formulations, against all schedules of small problems."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from pilot import planners
from pilot.core.curves.curve import Curve
from pilot.core.errors import UserError
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Candidate, PlanStatus, Problem
from pilot.core.pool.losses import LossRate
from pilot.planners import milp
from pilot.research.planners import horizon, rolling_horizon
from pilot.research.planners.horizon import HuaweiJob, jobs_of
from pilot.research.planners.rolling_horizon import priced
from tests.property import model_printed

PUBLISHED = Curve.of([(2**m, 2**m * 0.8**m) for m in range(5)])
STEPS = 3
PRINTED = milp.Formulation("printed", lambda p: model_printed.build(p, STEPS), model_printed.counts)
COMPACT = milp.Formulation("compact", lambda p: horizon.build(p, STEPS), horizon.counts)
CASES = range(200)
QUICK = CASES[:12]


def problem(seed: int, most_jobs: int = 3, most_nodes: int = 10) -> Problem:
    """Short, long, and of unknown length; some with sizes that are not powers of two, some that do not fit."""
    rng = random.Random(seed)
    candidates = []
    for number in range(rng.randint(1, most_jobs)):
        sizes = rng.choice(((1, 2, 4), (1, 2, 4), (2, 4), (1, 3), ()))
        low, high = (sizes[0], sizes[-1]) if sizes else (rng.randint(1, 2), rng.randint(2, 6))
        curve = rng.choice((PUBLISHED, PUBLISHED, Curve.proportional(), Curve.of([(1, 3), (2, 4), (4, 3.5)])))
        left_s = rng.choice((None, rng.uniform(1, 900), rng.uniform(600, 9000)))
        name = TrainerId(f"t{number}")
        candidates.append(Candidate(name, 0, low, high, curve, 0.0, 0.0, sizes, left_s=left_s))
    return Problem(rng.randint(1, most_nodes), 120.0, tuple(candidates), 300.0)


def best(jobs: list[HuaweiJob], nodes: int) -> float:
    """Eq. 1's optimum, by trying all schedules."""
    return max(
        sum(worth(job, schedule) for job, schedule in zip(jobs, schedules, strict=True))
        for schedules in itertools.product(*(itertools.product(range(len(j.sizes)), repeat=STEPS) for j in jobs))
        if all(sum(j.sizes[c[t]] for j, c in zip(jobs, schedules, strict=True)) <= nodes for t in range(STEPS))
    )


def worth(job: HuaweiJob, schedule: tuple[int, ...]) -> float:
    return sum(min(1.0, done) for done in itertools.accumulate(job.shares[k] for k in schedule))


def value_of(given: Problem, formulation: milp.Formulation, solver: str) -> float:
    outcome = milp.solve(given, time.monotonic() + 60.0, solver, formulation)
    assert outcome.proved and outcome.value is not None
    return outcome.value


def agrees(seed: int, solver: str) -> None:
    given = problem(seed)
    jobs = jobs_of(given, STEPS)
    if not jobs:
        return
    optimum = best(jobs, given.nodes)
    exact = 1e-5 if solver == "glpk" else 1e-6  # its report has six digits
    assert value_of(given, PRINTED, solver) == pytest.approx(optimum, rel=exact)
    assert value_of(given, COMPACT, solver) == pytest.approx(optimum, rel=exact)
    found = priced(jobs, given.nodes, time.monotonic() + 60.0, STEPS)
    assert found.bound is not None and found.value - 1e-9 <= optimum <= found.bound + 1e-9
    assert found.value == pytest.approx(sum(map(worth, jobs, found.schedules)))
    rest = milp.Formulation("rest", lambda p: horizon.build(p, STEPS, found.hopeless()), horizon.counts)
    assert value_of(given, rest, solver) == pytest.approx(optimum, rel=exact)


@pytest.mark.parametrize("seed", QUICK)
def test_both_formulations_have_the_optimum(seed: int) -> None:
    agrees(seed, "cbc")


@pytest.mark.long
@pytest.mark.parametrize("solver", planners.SOLVERS)
def test_both_formulations_have_the_optimum_of_200_problems_on_every_solver(solver: str) -> None:
    try:
        planners.make("rolling-horizon", solver)
    except UserError as error:
        pytest.skip(str(error))
    for seed in CASES:
        agrees(seed, solver)


@pytest.mark.parametrize("seed", range(8))
def test_a_plan_fits_and_is_within_its_gap(seed: int) -> None:
    given = problem(seed, most_jobs=12, most_nodes=40)
    made = rolling_horizon.plan(given, 60.0)
    assert given.feasible(made.as_dict())
    assert made.gap is not None and made.gap <= rolling_horizon.GAP
    admitted = {given.candidates[job.index].trainer for job in jobs_of(given)}
    assert {trainer for trainer, nodes in made.counts if nodes} == admitted


@pytest.mark.parametrize(("left_s", "rescale_s", "nodes"), [(1e5, 300.0, 8), (1e5, 1500.0, 4), (900.0, 300.0, 4)])
def test_a_rescale_is_made_where_it_pays_back_within_the_horizon(left_s: float, rescale_s: float, nodes: int) -> None:
    """Eight nodes are 1.6 times as fast as four; five steps pay for one loss, not for five."""
    held = Candidate(TrainerId("t"), 4, 1, 8, PUBLISHED, rescale_s, rescale_s, (1, 2, 4, 8), left_s=left_s)
    given = Problem(8, 120.0, (held,), 300.0)
    assert rolling_horizon.plan(given, 10.0).as_dict() == {"t": 8}
    made = rolling_horizon.plan(given, 10.0, costs=True)
    assert made.as_dict() == {"t": nodes} and made.gap == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("events_per_s", "nodes"), [(0.0, 8), (1 / 2400, 8), (1 / 600, 4), (1.0, 1)])
def test_nodes_are_not_worth_the_preemptions_that_they_bring(events_per_s: float, nodes: int) -> None:
    """Eight are 1.6 times as fast as four. Each loss costs 400 s; there are as many as nodes until the pool is
    empty."""
    held = Candidate(TrainerId("t"), 0, 1, 8, PUBLISHED, 200.0, 200.0, (1, 2, 4, 8), left_s=1e5)
    given = Problem(8, 120.0, (held,), 300.0, losses=LossRate(events_per_s / 8, events_per_s))
    assert rolling_horizon.plan(given, 10.0).as_dict() == {"t": 8}, "in the paper there is none"
    assert rolling_horizon.plan(given, 10.0, costs=True).as_dict() == {"t": nodes}


def test_first_come_first_served_where_not_all_fit() -> None:
    trainers = [Candidate(TrainerId(n), 0, 2, 4, PUBLISHED, 0.0, 0.0, (2, 4), left_s=500.0) for n in "abc"]
    assert rolling_horizon.plan(Problem(5, 120.0, tuple(trainers)), 10.0).as_dict() == {"a": 2, "b": 2, "c": 0}


def test_out_of_time_the_incumbent_counts() -> None:
    given = problem(7, most_jobs=12, most_nodes=40)
    made = rolling_horizon.plan(given, 0.0)
    assert made.status in (PlanStatus.INCUMBENT, PlanStatus.OPTIMAL)
    assert sum(nodes for _, nodes in made.counts) > 0


def test_short_jobs_get_no_more_nodes_than_they_need() -> None:
    """On four nodes it ends in the first step, and completed work counts at every step."""
    short = Candidate(TrainerId("short"), 0, 1, 8, PUBLISHED, 0.0, 0.0, (1, 2, 4, 8), left_s=600.0)
    long = Candidate(TrainerId("long"), 0, 1, 8, PUBLISHED, 0.0, 0.0, (1, 2, 4, 8), left_s=90000.0)
    assert rolling_horizon.plan(Problem(9, 120.0, (long, short)), 10.0).as_dict() == {"long": 4, "short": 4}


def test_no_trainer_and_a_solver_that_is_not_there() -> None:
    assert rolling_horizon.plan(Problem(3, 120.0, ()), 1.0).counts == ()
    with pytest.raises(UserError, match="unknown solver"):
        planners.make("rolling-horizon", "magic")
