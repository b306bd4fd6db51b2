"""However a scheduler call fails, only that call is in trouble: nothing else ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pilot.core.errors import SubmitError, UserError
from pilot.provisioning.scheduler import QueueSnapshot, SchedulerThread


class Failing:
    """A scheduler all of whose calls fail."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def poll(self, _jobs: Sequence[str], _now_s: float) -> QueueSnapshot:
        raise self.error

    def submit(self, _walltime_s: float) -> str:
        raise self.error

    def cancel(self, _jobs: Sequence[str]) -> list[str]:
        raise self.error

    def kill(self, _jobs: Sequence[str]) -> None:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        BlockingIOError(11, "Resource temporarily unavailable"),
        OSError(28, "No space left on device"),
        RuntimeError("can't start new thread"),
        UserError("cannot read the connection file"),
        KeyError("a field that is not there"),
    ],
)
def test_every_failure_is_a_submit_error_that_may_pass(error: Exception) -> None:
    async def play() -> None:
        scheduler = Failing(error)
        thread = SchedulerThread(scheduler.submit, scheduler)
        calls = [thread.poll([], 0.0), thread.submit(60.0), thread.cancel(["1"]), thread.kill(["1"])]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, SubmitError)
            assert outcome.transient
            assert str(error) in str(outcome)
        thread.close()

    asyncio.run(play())
