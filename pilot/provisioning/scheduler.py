"""A batch scheduler's answers about our jobs, in terms common to all schedulers.

One :class:`Queue` per scheduler (``scheduler_slurm`` …) turns one poll into a :class:`QueueSnapshot`. If a scheduler
does not answer, an error is raised, which implies nothing about the jobs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeVar

from pilot.core.errors import PilotError, SubmitError
from pilot.host.commands import CommandRefused, Run, run_command
from pilot.host.private_folder import user_name
from pilot.provisioning.last_words import last_line
from pilot.site.site import Site

log = logging.getLogger(__name__)

T = TypeVar("T")


class JobPhase(StrEnum):
    """Where a job is in its life."""

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    """Its processes are stopped, and another job may have its nodes."""
    OVER = "over"


class JobEnd(StrEnum):
    """How a job ended."""

    COMPLETED = "completed"
    PREEMPTED = "preempted"
    WALLTIME = "wall time"
    CANCELLED = "cancelled"
    FAILED = "failed"
    NODE_FAILED = "node failed"
    GONE = "unknown cause"
    """Over for an unknown reason."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as the scheduler shows it now. Times are Unix times; None: not known.

    ``start_s`` of a queued job is when the scheduler expects it to start. One that is ``held`` does not start before,
    or if ``start_s`` is None, before somebody releases it; another job would not wait for that. ``preempt_s`` is set
    once the scheduler has decided to preempt it; ``end_s`` is when it will be killed at the latest, ``planned_s`` when
    another user's job is planned to start on one of its nodes; ``ending`` is None unless it is over; ``restart`` counts
    requeues; ``detail`` is the scheduler's own wording.
    """

    job: str
    phase: JobPhase
    ending: JobEnd | None = None
    name: str = ""
    restart: int = 0
    start_s: float | None = None
    end_s: float | None = None
    preempt_s: float | None = None
    planned_s: float | None = None
    walltime_s: float | None = None
    nodes: frozenset[str] = frozenset()
    detail: str = ""
    held: bool = False


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The answer to one poll."""

    #: ours, by id: the requested ones, and any with our name
    jobs: Mapping[str, JobView] = field(default_factory=dict)
    others: int = 0  #: others' jobs that count against the site's limit
    idle_nodes: int | None = None  #: nodes that nobody has or waits for; None: not known
    planned_nodes: int = 0  #: nodes that are idle until another job or a reservation begins on them
    window_s: float | None = None  #: how long the planned nodes stay idle at least; None if there are none
    trouble: str = ""  #: a failed part of the poll, for people
    #: jobs that another query lists as existing: they are not over, whatever their views are
    listed: frozenset[str] = frozenset()


class CancelRefused(SubmitError):
    """The scheduler refuses to cancel some jobs, for the reason in the message; ``taken`` are the others."""

    def __init__(self, message: str, taken: list[str]) -> None:
        super().__init__(message, transient=True)
        self.taken = taken


class Queue(Protocol):
    """One scheduler."""

    def poll(self, jobs: Sequence[str], now_s: float) -> QueueSnapshot:
        """The scheduler's view of ``jobs`` (ids) and of any job of this pool. Raises SubmitError if it did not answer,
        or the answer cannot be parsed."""

    def cancel(self, jobs: Sequence[str]) -> list[str]:
        """Cancel ``jobs``, also those that an earlier coordinator submitted; returns those that the scheduler agreed to
        cancel, and those that are over or unknown to it. Raises CancelRefused if it refuses to cancel some, SubmitError
        if it did not answer."""

    def kill(self, jobs: Sequence[str]) -> None:
        """Kill jobs that outlived their cancellation; raises ``SubmitError`` if the scheduler refuses."""


WINDOW_MARGIN_S = 60.0
"""A pilot on a planned node ends at least this long before the node is needed."""

BATCH = 100
"""Most ids per command: far below the limit of a command line, and few to retry after a refusal."""


def batches(jobs: Sequence[str]) -> Iterator[Sequence[str]]:
    """``jobs`` split into batches for one command each."""
    return (jobs[first : first + BATCH] for first in range(0, len(jobs), BATCH))


def _names(line: str, job: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(job)}(?!\w)", line) is not None


@dataclass(frozen=True, slots=True)
class States:
    """The scheduler's words for the states of a job."""

    pending: Collection[str]
    suspended: Collection[str]
    over: Collection[str]

    def phase(self, state: str) -> JobPhase:
        """Unknown states count as running; otherwise we would submit too many."""
        known = {JobPhase.PENDING: self.pending, JobPhase.SUSPENDED: self.suspended, JobPhase.OVER: self.over}
        return next((phase for phase, states in known.items() if state in states), JobPhase.RUNNING)


class BatchQueue(Queue):
    """The common part of all batch schedulers' queues: jobs of this pool are those whose name starts with ``prefix``
    and a dot. ``run`` runs commands (or replays recorded answers), ``user`` is the owner of our jobs.
    """

    CANCELS: Sequence[str]
    """The command that cancels the jobs whose ids follow. It continues after one that it refuses, and prints a line for
    each such id."""
    KILLS: Sequence[str]
    NO_MORE: Sequence[str]
    """Its messages for jobs that are already over."""

    def __init__(self, site: Site, prefix: str, run: Run = run_command, user: str | None = None) -> None:
        self._site = site
        self._prefix = f"{prefix}."
        self._run = run
        self._user = user or user_name(os.getuid())

    def cancel(self, jobs: Sequence[str]) -> list[str]:
        """See :class:`Queue`."""
        return self._each(self.CANCELS, jobs)

    def kill(self, jobs: Sequence[str]) -> None:
        """See :class:`Queue`."""
        for batch in batches(jobs):
            self._ask(*self.KILLS, *batch)

    def _ask(self, *command: str) -> str:
        return self._run(list(command), self._site.command_timeout_s)

    def _each(self, command: Sequence[str], jobs: Sequence[str]) -> list[str]:
        """Run ``command`` for ``jobs``; returns them. Raises CancelRefused if it refuses some."""
        taken: list[str] = []
        refusal = ""
        for batch in batches(jobs):
            try:
                self._ask(*command, *batch)
            except CommandRefused as error:
                lines = error.stderr.splitlines()
                errors = [line for line in lines if not self._is_over(line)]
                named = [job for job in batch if any(_names(line, job) for line in errors)]
                # An error that names none of them, or says nothing, concerns all: the command did not get that far.
                refused = named if named or (lines and not errors) else batch
                taken += [job for job in batch if job not in refused]
                if refused:
                    refusal = f"{command[0]} failed: {errors[-1]}" if errors else str(error)
            else:
                taken += batch
        if refusal:
            raise CancelRefused(refusal, taken)
        return taken

    def _is_over(self, line: str) -> bool:
        return any(words in line for words in self.NO_MORE)


def local_time_s(text: str, form: str) -> float | None:
    """Unix time of a scheduler's local time in the ``form`` of :func:`time.strptime`; None if it is not one."""
    try:
        return time.mktime(time.strptime(text, form))
    except ValueError:
        return None


class SchedulerThread:
    """The scheduler for asyncio: one thread makes all calls, one after the other. So a submission in progress when its
    caller is cancelled is completed, and seen by the next poll.

    ``submit`` submits a job with a wall time, not for some nodes, and returns its id. ``output_of`` returns the path of
    a job's standard error. Each call raises ``SubmitError`` if the scheduler refuses or does not answer.
    """

    def __init__(
        self,
        submit: Callable[[float, Collection[str]], str],
        queue: Queue,
        output_of: Callable[[str], Path | None] = lambda _: None,
    ) -> None:
        self._submit = submit
        self._queue = queue
        self._output_of = output_of
        self._thread = ThreadPoolExecutor(1, "scheduler")

    async def poll(self, jobs: Sequence[str], now_s: float) -> QueueSnapshot:
        """The scheduler's view of all jobs of this name, and of ``jobs``."""
        return await self._call(self._queue.poll, jobs, now_s)

    async def submit(self, walltime_s: float, without: Collection[str] = ()) -> str:
        """Submit a job that does not run on the nodes ``without``; its id."""
        return await self._call(self._submit, walltime_s, without)

    async def last_line(self, job: str) -> str:
        """The last line that ``job`` wrote to its standard error; "" if that is not known."""
        path = self._output_of(job)
        return "" if path is None else await self._call(last_line, path)

    async def cancel(self, jobs: Sequence[str]) -> list[str]:
        """Cancel ``jobs``; returns those that the scheduler agreed to cancel, or that are over."""
        return await self._call(self._queue.cancel, jobs)

    async def kill(self, jobs: Sequence[str]) -> None:
        """Kill ``jobs`` that outlived their cancellation."""
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
