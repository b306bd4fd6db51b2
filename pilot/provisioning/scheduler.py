"""What a batch scheduler says of our jobs, and what became of a job: the same words for all schedulers.

One :class:`Queue` per scheduler (``scheduler_slurm`` …) turns one poll into a :class:`Snapshot`. Queries block: run
them in a thread. A scheduler that does not answer raises; that says nothing of the jobs.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from pilot.core.errors import SubmitError


class JobPhase(StrEnum):
    """Where a job is in its life."""

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    """Its processes are stopped, and another job may have its nodes."""
    OVER = "over"


class Ending(StrEnum):
    """What became of a job."""

    COMPLETED = "completed"
    PREEMPTED = "preempted"
    WALLTIME = "wall time"
    CANCELLED = "cancelled"
    FAILED = "failed"
    NODE_FAILED = "node failed"
    GONE = "unknown cause"
    """Over, and nobody knows why."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as the scheduler shows it now. Times are Unix times, None where not known.

    ``start_s`` of a job that waits is when the scheduler expects it to start. ``preempt_s`` is set once the scheduler
    has decided to preempt it, ``end_s`` when it will be killed at the latest, ``planned_s`` when a job of others is
    planned to start on one of its nodes; ``ending`` is None unless it is over;
    ``restart`` counts requeues; ``detail`` is the scheduler's own word.
    """

    job: str
    phase: JobPhase
    ending: Ending | None = None
    name: str = ""
    restart: int = 0
    start_s: float | None = None
    end_s: float | None = None
    preempt_s: float | None = None
    planned_s: float | None = None
    walltime_s: float | None = None
    nodes: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The answer to one poll.

    Parameters
    ----------
    jobs : ours, by id: those that were asked for, and any whose name is ours
    others : jobs of others that count against the site's cap
    idle_nodes : nodes that nobody has or waits for; None where the scheduler does not tell
    planned_nodes : nodes that idle until another job starts on them
    window_s : how long the planned nodes stay idle at least; None where there are none
    trouble : what could not be read, for people
    listed : jobs that the scheduler lists as living when it is asked another way: they are not over, whatever it says
    """

    jobs: Mapping[str, JobView] = field(default_factory=dict)
    others: int = 0
    idle_nodes: int | None = None
    planned_nodes: int = 0
    window_s: float | None = None
    trouble: str = ""
    listed: frozenset[str] = frozenset()


class Queue(Protocol):
    """One scheduler."""

    def poll(self, jobs: Sequence[str], now_s: float) -> Snapshot:
        """The scheduler's view of ``jobs`` (ids) and of any job of this pool.

        Raises
        ------
        SubmitError
            It did not answer, or not in a way that can be read.
        """

    def cancel(self, jobs: Sequence[str]) -> list[str]:
        """Cancel ``jobs``, also those that an earlier coordinator submitted: those that the scheduler agreed to end,
        and those that it says are over or unknown to it.

        Raises
        ------
        SubmitError
            It did not answer.
        """

    def kill(self, jobs: Sequence[str]) -> None:
        """End by force what outlived its cancellation; raises ``SubmitError`` where the scheduler refuses."""


Run = Callable[[Sequence[str], float], str]
"""Runs a scheduler's command within a limit in seconds and returns its output; :func:`run_command`, or recorded."""


class Refused(SubmitError):
    """A scheduler's command ended with an error; ``said`` is all that it said about it, a line per complaint.

    ``output`` is its answer as far as it went.
    """

    def __init__(self, command: str, said: str, status: int = 1, output: str = "") -> None:
        self.said, self.output = said.strip(), output
        super().__init__(f"{command} failed: {_last_line(said) or f'exit {status}'}", transient=True)


_FOR_PEOPLE = ("SQUEUE_", "SINFO_", "SACCT_", "SLURM_TIME_FORMAT", "LSB_BJOBS_FORMAT")
"""Variables with which users change what these commands show them."""

BATCH = 100
"""Ids in one command: far from the longest command line, and what is refused is soon tried again."""


def batches(jobs: Sequence[str]) -> Iterator[Sequence[str]]:
    """``jobs`` in parts that one command takes."""
    return (jobs[first : first + BATCH] for first in range(0, len(jobs), BATCH))


def cancel_by(run: Callable[[Sequence[str]], object], jobs: Sequence[str], no_more: Sequence[str]) -> list[str]:
    """Cancel by a command that takes ids, goes on after one that it refuses, and has a line for each such.

    ``run`` runs it for some jobs; ``no_more`` are the words in which it says that there is nothing left to cancel.
    """
    taken: list[str] = []
    for batch in batches(jobs):
        try:
            run(batch)
        except Refused as error:
            complaints = [line for line in error.said.splitlines() if not any(words in line for words in no_more)]
            named = [job for job in batch if any(_names(line, job) for line in complaints)]
            # A complaint about none of them is one about all: it did not get that far.
            refused = batch if complaints and not named else named
            taken += [job for job in batch if job not in refused]
        else:
            taken += batch
    return taken


def _names(line: str, job: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(job)}(?!\w)", line) is not None


def run_command(command: Sequence[str], limit_s: float) -> str:
    """Output of ``command``; killed with all that it started after ``limit_s``.

    Raises
    ------
    Refused
        It failed.
    SubmitError
        It is not there, or took too long.
    """
    name = command[0]
    if shutil.which(name) is None:
        raise SubmitError(f"{name} is not on this machine's PATH; run this where the scheduler's commands are")
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={name: value for name, value in os.environ.items() if not name.startswith(_FOR_PEOPLE)},
        start_new_session=True,
    ) as process:
        try:
            output, said = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise SubmitError(f"{name} did not answer within {limit_s:g} s", transient=True) from None
    if process.returncode:
        raise Refused(name, said, process.returncode, output)
    return output


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


WALLTIME_WORD = "wall time"
"""What an agent's notice says where it leaves before its wall time ends; anything else announces a preemption."""


def what_became(
    view: JobView | None, word: str, now_s: float, *, cancelled: bool, lost: bool = False, lead_s: float = 0.0
) -> Ending:
    """What became of a job that is over.

    Parameters
    ----------
    view : the scheduler's last word, None where it no longer knows the job
    word : the cause of the agent's notice, "" where it gave none
    now_s : when it was seen to be over
    cancelled : whether we cancelled it ourselves
    lost : whether we did so because its agent had been silent for longer than its lease
    lead_s : how long before its wall time's end the scheduler signals a job

    Notes
    -----
    The scheduler knows best why it took a node. But a job whose agent left in its grace ends as *completed*: there the
    agent's word counts, and so it does for a job that the scheduler no longer knows. A node that dies is found by the
    scheduler, or by us when its agent's lease is over, whoever is first: we then cancel the job, and that is all
    that the scheduler tells later.
    """
    seen = view.ending if view else None
    if seen in (Ending.PREEMPTED, Ending.WALLTIME, Ending.NODE_FAILED):
        return seen
    if view and view.preempt_s is not None:
        return Ending.PREEMPTED
    if lost:
        return Ending.NODE_FAILED
    if cancelled or seen is Ending.CANCELLED:
        return Ending.CANCELLED
    if word:
        # The same signal announces both; only near the end of its wall time it means that.
        return Ending.WALLTIME if WALLTIME_WORD in word or _was_used_up(view, now_s, lead_s) else Ending.PREEMPTED
    return seen or Ending.GONE


def local_time_s(text: str, form: str) -> float | None:
    """Unix time of a scheduler's local time in the ``form`` of :func:`time.strptime`; None where it is none."""
    try:
        return time.mktime(time.strptime(text, form))
    except ValueError:
        return None


def _was_used_up(view: JobView | None, now_s: float, lead_s: float) -> bool:
    """The last view of it may be one of its life, whose end was still to come."""
    if view is None or view.start_s is None or view.walltime_s is None:
        return False
    end_s = now_s if view.end_s is None else min(now_s, view.end_s)
    return end_s - view.start_s >= view.walltime_s - lead_s - CLOSE_S


CLOSE_S = 60.0
"""Schedulers look at wall times about once a minute."""
