import pytest

from pilot.core.curves.curve import Curve
from pilot.planners.choice import LinearPiece, pieces
from tests.unit.planners.problems import candidate

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
