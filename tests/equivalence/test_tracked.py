"""Tracked objects: large ones, differences between ranks, and ``session.on_restore``."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from pilot.core.errors import PilotError, UserError
from pilot.train.steps import snapshots
from tests.equivalence.loops import DATA, EPOCHS, Loop, SessionScript, assert_equal, session
from tests.equivalence.rows import assert_agree, on_ranks
from tests.equivalence.topics.tracked import BY_STEP, Counter, rollouts
from tests.unit.train.storm import End

JOINS = [End(4, (True,), (False,), 1)]


@pytest.mark.parametrize("row", BY_STEP, ids=lambda row: row.name)
def test_large_values_are_restored_too_where_they_were_seen_to_change(
    row: SessionScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SMALL_BYTES", -1)
    assert_equal(row.run, operations=range(4, 11))


def test_data_made_in_the_loop_that_differ_are_found() -> None:
    with pytest.raises(PilotError, match=r"dataset\.tensors\[0\] \(and 1 more\) has differed"):
        on_ranks(partial(rollouts, session, tracked=False), 1, JOINS)


def test_on_restore_is_called_after_each_restore() -> None:
    """So nothing derived from the state is stale: here, the double of a tracked number. It may use the steps, also in a
    process that joins and does not know its group yet.
    """
    restored: list[int] = []

    def script() -> int:
        count, doubled = Counter(), [0]
        loop = Loop(tracked={"counter": count})

        def again() -> None:
            doubled[0] = 2 * len(count.seen)
            restored.append(loop.session.steps)

        def body(*batch: torch.Tensor) -> None:
            count.seen.append(0)
            doubled[0] += 2
            loop.step(*batch)
            assert doubled[0] == 2 * len(count.seen)

        loop.session.on_restore(again)
        loop.train(body=body)
        return doubled[0]

    assert script() == 24
    assert not restored
    assert on_ranks(script, 2, [End(4, (True, False), (False,), 1)]) == [24] * 3
    assert len(restored) >= 2 + 1
    assert 0 < max(restored) < 12


def test_ranks_that_track_different_objects_are_refused() -> None:
    first = [False, True]
    with pytest.raises(UserError, match="the tracked object counter is"):
        on_ranks(lambda: Loop(tracked={"counter": Counter()} if first.pop() else {}).train(), 2, [])


@pytest.mark.parametrize("name", ["rank", "size"])
def test_a_function_of_on_restore_does_not_know_the_group(name: str) -> None:
    def script() -> None:
        loop = Loop()
        loop.session.on_restore(lambda: getattr(loop.session, name))
        loop.train()

    with pytest.raises(UserError, match="runs while its process is in no group"):
        on_ranks(script, 2, [])


@pytest.mark.parametrize("function", [3, lambda state: state])
def test_on_restore_refuses_a_function_that_it_cannot_call(function: Any) -> None:
    with pytest.raises(UserError, match="needs no arguments"):
        Loop().session.on_restore(function)


@pytest.mark.parametrize("at", [13, 14, 15])
def test_a_state_taken_over_in_inference_mode_can_be_trained(at: int) -> None:
    """As by a script that evaluates in it."""

    def script() -> dict[str, Any]:
        loop = Loop()
        for _ in loop.session.epochs(EPOCHS):
            loop.epoch()
            with torch.inference_mode():
                loop.session.evaluate(DATA, loop.measure, batch_size=1)
        return loop.tensors()

    assert_agree(on_ranks(script, 1, [End(at, (True,), (False,), 1)]), script())
