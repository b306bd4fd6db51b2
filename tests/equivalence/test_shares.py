"""Shares that follow times: the same result as with any others, whoever joins or dies meanwhile."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from pilot.core.errors import PilotError
from pilot.train.state import shares
from tests.equivalence import recipe, ways
from tests.equivalence.table import ROWS
from tests.equivalence.ways import Run, assert_as_plain, assert_as_undisturbed, in_threads
from tests.unit.train.storm import End

WAYS: dict[str, tuple[int, list[End]]] = {
    "changing shares": (2, []),
    "a death in the middle": (3, [End(9, (True,), (False, True), 0, void=True, at="step")]),
    "a join": (2, [End(6, (True,), (False,), 1, at="step")]),
}
SLOWNESS = [1.0, 3.0, 2.0]
NAMES = [
    "micro-batches of 1",
    "micro-batches of 2 of 5 samples, ragged",
    "GradScaler, micro-batches",
    "a stream, micro-batches",
]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row has few steps, of few samples."""
    monkeypatch.setattr(shares, "WINDOW", 1)
    for module in (recipe, ways):
        monkeypatch.setattr(module, "EPOCHS", 6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_trains_as_its_plain_loop(name: str, way: str) -> None:
    row = replace(ROWS[name], batch=9)
    run = in_threads(row, *WAYS[way], slowness=SLOWNESS)
    assert len(divisions(run)) > 1, "shares have not changed"
    assert_as_plain(row, run)
    assert_as_undisturbed(row, run)


def divisions(run: Run) -> Counter[tuple[int, ...]]:
    """How many steps were divided by each."""
    return Counter(tuple(bounds) for bounds in run.bounds.values())


def test_ranks_that_divide_a_step_differently_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise samples would be used twice, or not at all."""
    monkeypatch.setattr(shares.Shares, "bounds", lambda one, *_: (0, 1 + one._rank, 4))
    with pytest.raises(PilotError, match="the ranks took 3 samples in a step of 4"):
        in_threads(ROWS["micro-batches of 1"], 2, [])
