"""Which reports about known steps cannot be true, whether they come after others or before them."""

from __future__ import annotations

import pytest

from pilot.core.events import LedgerRange
from pilot.core.ids import Generation
from pilot.history.ledger import StepRanges

Row = tuple[int, int, int, int]
"""Steps from, to; samples from, to."""


def row(step: int, step_end: int, cursor: int, cursor_end: int) -> LedgerRange:
    return LedgerRange(Generation(1), 0, step, step_end, cursor, cursor_end)


def told(*rows: Row) -> StepRanges:
    ranges = StepRanges()
    for each in rows:
        ranges.add(row(*each))
    return ranges


@pytest.mark.parametrize(
    ("before", "last"),
    [
        (((0, 4, 0, 35), (0, 3, 0, 30)), (0, 1, 0, 12)),  # its first steps: others continue from them
        (((0, 1, 0, 10), (1, 2, 10, 20), (2, 3, 20, 30), (3, 4, 30, 40), (1, 4, 10, 40)), (0, 2, 0, 25)),  # repeated
        (((0, 2, 0, 20), (0, 1, 0, 10)), (0, 1, 0, 12)),  # one step is left
    ],
)
def test_a_point_between_steps_that_are_known_to_take_the_same_is_on_their_line(
    before: tuple[Row, ...], last: Row
) -> None:
    assert told(*before).disputed is None
    assert told(*before, last).disputed == row(*last)


def test_the_last_step_of_a_report_may_be_smaller_until_more_is_known() -> None:
    ranges = told((0, 4, 0, 40), (0, 1, 0, 12))
    assert ranges.disputed is None
    assert ranges.ranges == [row(0, 1, 0, 12), row(1, 4, 12, 40)]
