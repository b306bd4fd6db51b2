"""Which steps after a resume can be compared with the same steps before it."""

from __future__ import annotations

import pytest

from pilot.train.alike.next_step import NextStep
from pilot.train.gradients.sketch import LENGTH


def step(first: float, bounds: tuple[int, ...], *, divides: bool) -> NextStep:
    return NextStep(9, 0, 8, 2, divides, {}, [{"a": [first] * LENGTH}], bounds)


@pytest.mark.parametrize("divides", [True, False])
@pytest.mark.parametrize("bounds", [(), (0, 3, 8)])
def test_sums_that_depend_on_the_division_are_compared_only_if_it_is_the_same(
    bounds: tuple[int, ...], divides: bool
) -> None:
    before, now = step(1.0, (0, 3, 8), divides=divides), step(2.0, bounds, divides=divides)
    assert bool(now.difference(before)) == (divides or bounds == before.bounds)
    assert now.divided_as(before) == (bounds == before.bounds)
