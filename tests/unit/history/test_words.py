"""Numbers as people read them."""

from __future__ import annotations

import pytest

from pilot.history.words import amount, counted, duration


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (3e-8, "less than 0.000001"),
        (7.89e-05, "0.000079"),
        (0.0005, "0.0005"),
        (0.005, "0.005"),
        (0.01234, "0.0123"),
        (3.14159, "3.14"),
        (999.4, "999"),
        (999.6, "1,000"),
        (1234567.8, "1,234,568"),
    ],
)
def test_an_amount_has_no_exponent(value: float, shown: str) -> None:
    assert amount(value) == shown


def test_one_is_no_plural() -> None:
    assert [counted(number, "step") for number in (0, 1, 2, 2400)] == ["0 steps", "1 step", "2 steps", "2,400 steps"]


@pytest.mark.parametrize(("seconds", "words"), [(4.4, "4s"), (61, "1m01s"), (7260, "2h01m"), (90_000, "1d01h")])
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words
