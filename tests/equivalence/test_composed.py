"""Scripts with several features at once, in storms."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.equivalence.composed.covering import AXES, covering
from tests.equivalence.composed.storms import assert_equal, assert_stormy
from tests.everyday import one_in
from tests.unit.train.storm import End, Keep

SEED = 1
COMPOSED = {f"{number}": one for number, one in enumerate(covering(SEED))}
PLAINEST = {axis: choices[0] for axis, choices in AXES.items()}

flags = st.lists(st.booleans(), min_size=1, max_size=4).map(tuple)
places = (st.sampled_from(["any", "step", "agreement"]), st.sampled_from(["oldest", "newest"]))
storms = st.lists(
    st.builds(End, st.integers(0, 24), flags, flags, st.integers(0, 2), st.booleans(), *places), max_size=6
)

FOUND: dict[str, tuple[dict[str, str], int, list[End]]] = {
    "one joins that reads a stream again, whose samples draw": (
        {"data": "stream", "noise": "all"},
        1,
        [End(4, (True,), (False,), 1)],
    ),
    "weights decayed by hand, and the very first step is void": (
        {"gradients": "decayed"},
        2,
        [End(1, (False,), (False,), 0, void=True)],
    ),
    "an evaluation at an epoch's beginning, after changes by hand, to which others come": (
        {"evaluated": "before the epoch", "by hand": "noisy"},
        1,
        [End(11, (False,), (True,), 2)],
    ),
    "one comes at an epoch's end, where the state gets what follows from weights changed at its beginning": (
        {"by hand": "noisy", "state": "of epochs"},
        1,
        [End(12, (False,), (True,), 1)],
    ),
    "an optimizer of one's own gets a group, on ranks that have taken over a state and on others": (
        {"optimizer": "own", "trained": "a group added"},
        1,
        [End(4, (True,), (False,), 1)],
    ),
    "two optimizers that are stepped at once share a loss scaler": (
        {"optimizer": "parts by name", "scaler": "grows"},
        2,
        [],
    ),
    "a stop after an epoch's last step, by iteration": (
        {"loop": "iterations", "batches": "all at once", "end": "stopped"},
        2,
        [],
    ),
    "others come as one is about to leave the loop in an epoch": (
        {"end": "left in an epoch", "evaluated": "between steps"},
        1,
        [End(13, (False,), (False,), 0), End(12, (True,), (False,), 2)],
    ),
    "others come when one has left the loop after its changes at an epoch's end": (
        {"by hand": "loaded", "end": "left after an epoch", "evaluated": "after the epoch"},
        1,
        [
            End(5, (False, False), (True, False, True), 1),
            End(11, (False,), (False, True), 0, void=True),
            End(9, (True, False, True), (False,), 2),
        ],
    ),
    "one that comes has evaluated more often than the others, and has not done what they have done since": (
        {"evaluated": "halves before the epoch, between steps"},
        1,
        [End(5, (True,), (False,), 1, at="agreement"), End(7, (True,), (False,), 1)],
    ),
    "the same evaluation after an epoch's last step and at its end, to which others come": (
        {"data": "stream", "schedule": "plateau", "evaluated": "between steps", "end": "stopped"},
        3,
        [
            End(19, (True, False, False), (False,), 2, True),
            End(8, (True, True, False), (False, True), 2, True),
            End(24, (False,), (True, True, False), 2),
            End(8, (False,), (False,), 1),
        ],
    ),
    "gradients zeroed after each session.step, of which only the last of a step's steps": (
        {"batches": "micro 1", "zeroed": "after the step", "optimizer": "list"},
        1,
        [End(4, (True,), (False,), 1), End(9, (True, False), (False, True), 1, void=True)],
    ),
}

RESUMED: dict[str, tuple[dict[str, str], Keep]] = {
    "in the evaluation before the first step, after changes by hand": (
        {"evaluated": "before the epoch", "by hand": "noisy"},
        Keep(0, 2),
    ),
    "at an epoch's end, in an evaluation after changes by hand": (
        {"evaluated": "twice after the epoch", "by hand": "loaded", "state": "of epochs"},
        Keep(6, 7),
    ),
    "where the last epoch ends, with a measure after changes by hand": (
        {"schedule": "plateau", "by hand": "loaded"},
        Keep(18, 7),
    ),
}
"""States made in an evaluation, or at an epoch's end."""


@pytest.mark.parametrize("name", one_in(15, [*COMPOSED]))
def test_trains_as_its_plain_loop(name: str) -> None:
    assert_stormy(COMPOSED[name], SEED * 1000 + int(name))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(number=st.integers(0, len(COMPOSED) - 1), count=st.integers(1, 3), ends=storms)
def test_trains_as_its_plain_loop_in_any_storm(number: int, count: int, ends: list[End]) -> None:
    assert_equal(COMPOSED[f"{number}"], count, ends)


@pytest.mark.parametrize("name", FOUND)
def test_former_defects(name: str) -> None:
    choices, count, ends = FOUND[name]
    assert_equal(PLAINEST | choices, count, ends)


@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.parametrize("count", [1, 2])
def test_former_defects_of_resumed_runs(name: str, count: int) -> None:
    choices, keep = RESUMED[name]
    kept = assert_equal(PLAINEST | choices, 1, [], keep=keep)
    assert kept is not None
    assert kept["meeting"] is None, "it is the state from which all of that follows"
    assert_equal(PLAINEST | choices, count, [], begin=kept)
