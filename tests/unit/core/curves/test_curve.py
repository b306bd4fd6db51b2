import math

import pytest

from pilot.core.curves.curve import RATES, Curve, concave_hull, is_rate
from pilot.core.errors import UserError


def test_linear_between_points_and_last_efficiency_beyond() -> None:
    curve = Curve.of([(1, 10), (4, 28)])
    assert curve.at(0) == 0
    assert curve.at(0.5) == 5
    assert curve.at(2) == 16
    assert curve.at(4) == 28
    assert curve.at(8) == 56


def test_a_falling_curve_is_valid() -> None:
    assert Curve.of([(1, 10), (2, 6)]).at(2) == 6


def test_single_node_rate_is_per_node_where_one_node_is_not_a_point() -> None:
    assert Curve.of([(4, 20), (8, 36)]).single_node_rate() == 5
    assert Curve.of([(1, 7), (8, 36)]).single_node_rate() == 7


def test_the_proportional_curve() -> None:
    assert [Curve.proportional().at(n) for n in (0, 1, 7)] == [0, 1, 7]
    assert Curve.proportional(3.0).scaled(2.0) == Curve((0.0, 1.0), (0.0, 6.0))


def test_the_range_of_a_rate() -> None:
    low, high = RATES
    assert all(map(is_rate, (0, 0.0, low, 1.0, high)))
    assert not any(map(is_rate, (None, low / 2, 2 * high, -1.0, -low, math.nan, math.inf)))


@pytest.mark.parametrize(
    ("nodes", "per_s"), [((0.0, 1.0), (0.0,)), ((0.0,), (0.0,)), ((1.0, 2.0), (0.0, 1.0)), ((0.0, 1.0), (0.5, 1.0))]
)
def test_points_that_are_no_curve_are_refused(nodes: tuple[float, ...], per_s: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match="a scaling curve needs"):
        Curve(nodes, per_s)


@pytest.mark.parametrize(
    ("points", "complaint"),
    [
        ([(1, 1), (1, 2)], "strictly increasing"),
        ([(2, 1), (1, 2)], "strictly increasing"),
        ([(1, math.nan)], "not a finite number"),
        ([(1, math.inf)], "not a finite number"),
        ([(1, -1)], "negative"),
        ([], "one more"),
    ],
)
def test_bad_points_are_refused_in_one_line(points: list[tuple[float, float]], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as refused:
        Curve.of(points)
    assert "\n" not in str(refused.value)


def test_the_concave_hull_keeps_corners_above_the_lines_between_others() -> None:
    points = [(0, 0.0), (1, 1.0), (2, 5.0), (3, 6.0), (4, 7.0), (8, 7.0)]
    assert concave_hull(points) == [points[i] for i in (0, 2, 4, 5)]
    assert concave_hull(points[:1]) == points[:1]
