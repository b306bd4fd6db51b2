import pytest

from pilot.core.curves.curve import Curve
from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem
from pilot.planners import choice
from pilot.planners.choice import LinearPiece, best_known, can_stay, pieces, plan_of
from tests.unit.planners.problems import candidate, problem

GIVEN = problem(10, candidate(2), candidate(3))


def plans(given: Problem, *counts: list[int]) -> list[Plan]:
    return [plan_of(given, each, PlanStatus.OPTIMAL, 0.0, "") for each in counts]


def test_the_best_incumbent_is_taken_if_better_than_now() -> None:
    made = best_known(GIVEN, plans(GIVEN, [4, 4], [8, 2]), bound=None, planner="p")
    assert (made.status, [n for _, n in made.counts], made.gap) == (PlanStatus.INCUMBENT, [8, 2], None)


def test_the_allocation_stays_if_nothing_better_is_known() -> None:
    for incumbents in ([], plans(GIVEN, [2, 3]), plans(GIVEN, [1, 1])):
        made = best_known(GIVEN, incumbents, bound=None, planner="p")
        assert (made.status, made.as_dict()) == (PlanStatus.KEPT, GIVEN.kept())


def test_the_gap_is_the_distance_from_the_bound() -> None:
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


@pytest.mark.parametrize(
    ("nodes", "candidates", "expected"),
    [
        (9, [candidate(), candidate(), candidate()], [3, 3, 3]),
        (8, [candidate(), candidate(), candidate()], [4, 2, 2]),
        (2, [candidate(), candidate(), candidate()], [2, 0, 0]),
        (12, [candidate(high=2), candidate(), candidate()], [2, 6, 4]),
        (99, [candidate(high=2), candidate(high=3), candidate(high=4)], [2, 3, 4]),
        (11, [candidate(), candidate(high=1), candidate()], [7, 1, 3]),
        (9, [candidate(low=4), candidate(low=4), candidate(low=4)], [8, 0, 0]),
        (9, [candidate(low=8), candidate(), candidate()], [0, 6, 3]),
        (3, [candidate(low=4)], [0]),
        (0, [candidate(), candidate()], [0, 0]),
        (4, [], []),
    ],
)
def test_equal_shares(nodes: int, candidates: list[Candidate], expected: list[int]) -> None:
    given = problem(nodes, *candidates)
    made = choice.plan(given)
    assert [n for _, n in made.counts] == expected
    assert given.feasible(made.as_dict())
    assert (made.status, made.gap) == (PlanStatus.INCUMBENT, None)
    assert made.objective == given.objective(made.as_dict())


CURVES = [
    Curve.proportional(3.0),
    Curve.of([(1, 1), (2, 5), (4, 6), (8, 7)]),
    Curve.of([(1.5, 1), (2.5, 5), (2.75, 3), (4.25, 4.25), (6, 1)]),
    Curve.of([(0.1, 1), (0.2, 5), (40, 3)]),
]


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("now", [0, 1, 3, 4, 9, 20])
@pytest.mark.parametrize(("low", "high"), [(1, 9), (3, 9), (4, 4)])
def test_each_count_is_in_one_piece_and_exact_there(curve: Curve, now: int, low: int, high: int) -> None:
    c = candidate(now, low, high, curve)
    found = pieces(c, 60.0, nodes=100)
    assert [n for piece in found for n in range(piece.first, piece.last + 1)] == list(range(low, high + 1))
    for piece in found:
        for n in range(piece.first, piece.last + 1):
            assert piece.gain + piece.slope * (n - piece.first) == pytest.approx(c.gain(n, 60.0), rel=1e-12)


def test_pieces_are_as_long_as_the_curve_is_straight() -> None:
    assert len(pieces(candidate(now=0, high=64), 60.0, nodes=100)) == 1
    assert [(p.first, p.last) for p in pieces(candidate(now=8, high=64), 60.0, 100)] == [(1, 7), (8, 8), (9, 64)]


def test_they_are_clipped_to_the_pool() -> None:
    assert pieces(candidate(low=2), 60.0, nodes=1) == []
    assert pieces(candidate(low=2), 60.0, nodes=3) == [LinearPiece(2, 3, 120.0, 60.0)]
