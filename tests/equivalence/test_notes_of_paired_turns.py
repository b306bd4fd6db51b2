"""A script is told that it pairs the turns of the session's loop with numbers or items of its own; nobody else is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.equivalence.keeping import said


def rates(ours: Any, loader: Any, step: Any) -> None:
    for _, weight in zip(ours.epochs(2), [1.0, 0.5], strict=False):
        for x, y in loader:
            step(x, y, weight)


def numbered(ours: Any, loader: Any, step: Any) -> None:
    for number, _ in enumerate(ours.epochs(2)):
        for x, y in loader:
            step(x, y, number)


def of_iterations(ours: Any, loader: Any, step: Any) -> None:
    for number, _ in enumerate(ours.iterations(4)):
        step(*loader.next(), number)


@pytest.mark.parametrize("script", [rates, numbered, of_iterations])
def test_numbers_and_items_of_its_own(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(script, capsys)
    assert "pairs the turns of the session's loop" in line
    assert "test_notes_of_paired_turns.py, line " in line


def test_the_numbers_that_the_loop_gives(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        weights = [1.0, 0.5]
        for epoch in ours.epochs(2):
            for number, (x, y) in enumerate(loader):
                step(x, y, weights[epoch] / (1 + number))

    assert said(script, capsys) == []
