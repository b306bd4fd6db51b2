import pytest

from pilot.core.plan.problem import Plan, PlanStatus, Problem
from pilot.planners.choice import best_known, can_stay, plan_of
from tests.unit.planners.problems import candidate, problem

GIVEN = problem(10, candidate(2), candidate(3))


def plans(given: Problem, *counts: list[int]) -> list[Plan]:
    return [plan_of(given, each, PlanStatus.OPTIMAL, 0.0, "") for each in counts]


def test_the_best_incumbent_is_taken_if_better_than_now() -> None:
    made = best_known(GIVEN, plans(GIVEN, [4, 4], [8, 2]), bound=None, planner="p")
    assert (made.status, [n for _, n in made.counts], made.gap) == (PlanStatus.INCUMBENT, [8, 2], None)


def test_now_is_kept_if_nothing_better_is_known() -> None:
    for incumbents in ([], plans(GIVEN, [2, 3]), plans(GIVEN, [1, 1])):
        made = best_known(GIVEN, incumbents, bound=None, planner="p")
        assert (made.status, made.as_dict()) == (PlanStatus.KEPT, GIVEN.kept())


def test_the_gap_is_what_the_bound_leaves_open() -> None:
    assert best_known(GIVEN, [], bound=900.0, planner="p").gap == pytest.approx((900 - 600) / 600)
    assert best_known(GIVEN, [], bound=599.9999, planner="p").gap == 0


def test_parked_nodes_may_stay_but_not_more_than_there_are() -> None:
    assert can_stay(problem(3, candidate(now=1, low=2), candidate(now=2)))
    assert not can_stay(problem(2, candidate(now=1, low=2), candidate(now=2)))
    assert not can_stay(problem(20, candidate(now=9, high=8)))


def test_where_now_is_impossible_the_equal_share_competes() -> None:
    given = problem(5, candidate(now=4), candidate(now=4))
    assert [n for _, n in best_known(given, [], bound=None, planner="p").counts] == [3, 2]
    assert [n for _, n in best_known(given, plans(given, [4, 1]), bound=None, planner="p").counts] == [4, 1]
