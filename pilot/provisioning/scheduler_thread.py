"""The scheduler for asyncio: one thread makes all calls, one after the other.

So a submission in progress when its caller is cancelled is completed, and seen by the next poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from pilot.core.errors import PilotError, SubmitError
from pilot.provisioning.scheduler import Queue, Snapshot

log = logging.getLogger(__name__)

T = TypeVar("T")


class Provider(Protocol):
    """Submits jobs: :class:`pilot.provisioning.provider.PilotProvider`."""

    def submit(self, command: str, job_name: str, walltime_s: float | None = None) -> str:
        """Submit a job; its id."""


class SchedulerThread:
    """Calls ``provider`` and ``queue``, which block, for jobs called ``name`` that run the shell command ``command``.

    Each call raises :class:`~pilot.core.errors.SubmitError` if the scheduler refuses or does not answer.
    """

    def __init__(self, provider: Provider, queue: Queue, command: str, name: str) -> None:
        self._provider = provider
        self._queue = queue
        self._command = command
        self._name = name
        self._thread = ThreadPoolExecutor(1, "scheduler")

    async def poll(self, jobs: Sequence[str], now_s: float) -> Snapshot:
        """The scheduler's view of all jobs of this name, and of ``jobs``."""
        return await self._call(self._queue.poll, jobs, now_s)

    async def submit(self, walltime_s: float) -> str:
        """Submit a job; its id."""
        return await self._call(self._provider.submit, self._command, self._name, walltime_s)

    async def cancel(self, jobs: Sequence[str]) -> list[str]:
        """Cancel ``jobs``; returns those that the scheduler agreed to cancel, or says are over."""
        return await self._call(self._queue.cancel, jobs)

    async def kill(self, jobs: Sequence[str]) -> None:
        """Kill what is left of ``jobs``."""
        await self._call(self._queue.kill, jobs)

    def close(self) -> None:
        """End the thread, after its current call."""
        self._thread.shutdown(wait=False)

    async def _call(self, function: Callable[..., T], *arguments: object) -> T:
        """Treat any failure (no process, thread or file; an answer in a new format) as trouble with the call, which is
        retried."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
        except SubmitError:
            raise
        except Exception as error:
            if not isinstance(error, PilotError | OSError | RuntimeError):
                log.exception("internal error while polling the scheduler")
            raise SubmitError(f"{function.__name__} failed: {error}", transient=True) from None
