"""Rates on nodes of several types."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from pilot.core.curves.curve import Curve
from pilot.core.curves.mixed import mixed_rate, reference_rate

CURVE = Curve.of([(1, 100), (2, 190), (4, 340), (8, 560)])


def test_a_group_of_the_reference_type_has_the_rate_of_the_curve() -> None:
    assert [mixed_rate(CURVE, n, n) for n in (1, 2, 4, 8)] == approx([100, 190, 340, 560])


def test_one_node_is_as_fast_as_its_type() -> None:
    assert mixed_rate(CURVE, 1, 0.25) == approx(25)
    assert mixed_rate(CURVE, 1, 3) == approx(300)


def test_exchange_depends_on_the_number_of_nodes_and_computing_on_their_speeds() -> None:
    # 4 nodes: 1/340 s per sample, 1/400 of it computing; with two of half the speed the sum is 3: 1/300 computing.
    assert mixed_rate(CURVE, 4, 3) == approx(1 / (1 / 340 - 1 / 400 + 1 / 300))


def test_nothing_is_done_without_nodes() -> None:
    assert mixed_rate(CURVE, 0, 0) == 0
    assert mixed_rate(CURVE, 2, 0) == 0


def test_a_superlinear_curve_never_has_an_infinite_rate() -> None:
    steep = Curve.of([(1, 10), (2, 400)])
    assert mixed_rate(steep, 2, 20) == approx(4000)


@given(nodes=st.integers(1, 8), effective=st.floats(0.1, 40))
def test_the_curve_is_recovered_from_the_rate_of_a_mixed_group(nodes: int, effective: float) -> None:
    there = mixed_rate(CURVE, nodes, effective)
    assert reference_rate(there, nodes, effective, alone=100) == approx(CURVE.at(nodes))


def test_without_the_rate_of_one_node_all_of_the_time_counts_as_computing() -> None:
    assert reference_rate(300, 4, 3) == approx(400)
