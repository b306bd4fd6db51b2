import pytest

from pilot.core.curves.curve import Curve
from pilot.core.plan.problem import PlanStatus, Problem
from pilot.planners import dp
from tests.unit.planners.problems import candidate, problem


def counts(given: Problem) -> tuple[int, ...]:
    made = dp.plan(given)
    assert made.status is PlanStatus.OPTIMAL
    assert made.gap == 0
    return tuple(n for _, n in made.counts)


def test_nothing_to_divide() -> None:
    assert counts(problem(5)) == ()
    assert counts(problem(0, candidate())) == (0,)
    assert counts(problem(3, candidate(low=4))) == (0,)


def test_a_tie_goes_to_the_fewest_changes() -> None:
    free = {"up_s": 0.0, "down_s": 0.0}
    a, b, c = candidate(2, high=6, **free), candidate(3, high=6, **free), candidate(1, high=6, **free)
    assert counts(problem(7, a, b, c)) == (3, 3, 1)
    assert counts(problem(6, a, b, c)) == (2, 3, 1)


def test_then_to_submission_order() -> None:
    assert counts(problem(5, candidate(), candidate(), candidate())) == (5, 0, 0)
    assert counts(problem(5, candidate(low=2, high=3), candidate(low=2, high=3))) == (3, 2)


@pytest.mark.parametrize("rate", [0.1, 1 / 3, 7.1 / 2.8])
def test_sums_that_differ_in_their_last_bits_are_ties(rate: float) -> None:
    line = Curve.of([(1, rate), (3, 3 * rate), (7, 7 * rate)])
    free = {"up_s": 0.0, "down_s": 0.0, "curve": line}
    assert counts(problem(9, candidate(4, **free), candidate(5, **free))) == (4, 5)
    assert counts(problem(9, candidate(high=7, **free), candidate(high=7, **free))) == (7, 2)


def test_parked_nodes_are_worth_nothing_and_are_taken_back() -> None:
    assert counts(problem(4, candidate(now=1, low=2, high=3), candidate(now=3, low=3, high=3))) == (0, 3)
    assert counts(problem(5, candidate(now=1, low=2, high=3), candidate(now=3, low=3, high=3))) == (2, 3)


def test_fewer_nodes_than_are_held() -> None:
    assert counts(problem(4, candidate(now=4, high=4), candidate(now=4, high=4))) == (4, 0)


def test_out_of_time_the_plan_is_made_by_prices() -> None:
    made = dp.plan(problem(8, candidate(now=2), candidate(now=1, low=2)), limit_s=0.0)
    assert made.status is PlanStatus.INCUMBENT
    assert [n for _, n in made.counts] == [2, 6]
    assert made.gap == pytest.approx(0, abs=1e-3)


def test_out_of_time_the_allocation_stays_if_prices_give_nothing_better() -> None:
    given = problem(8, candidate(now=4), candidate(now=4))
    made = dp.plan(given, limit_s=0.0)
    assert made.status is PlanStatus.KEPT
    assert made.as_dict() == given.kept()


def test_a_deadline_that_passes_meanwhile_ends_the_programme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dp, "ADDITIONS_PER_S", 1e30)
    made = dp.plan(problem(8, candidate(now=2), candidate()), limit_s=1e-9)
    assert made.status is PlanStatus.INCUMBENT
    assert sum(n for _, n in made.counts) == 8


def test_out_of_time_with_too_few_nodes_left_the_rest_is_shared_by_prices() -> None:
    made = dp.plan(problem(5, candidate(now=4), candidate(now=4)), limit_s=0.0)
    assert made.status is PlanStatus.INCUMBENT
    assert [n for _, n in made.counts] == [4, 1]
