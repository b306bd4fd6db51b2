"""Keeps pilots submitted: asks the scheduler, notes what became of each job, replaces what goes.

What to do is decided in :mod:`pilot.provisioning.scaling_policy` from what :mod:`pilot.provisioning.pilot_jobs` knows;
this is the loop around them. One thread makes all calls to the scheduler, one after the other: so a submission that is
under way when the loop is cancelled is still seen, and cancelled, by :meth:`Keeper.down`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from pilot.core.errors import SubmitError
from pilot.io.site import Site
from pilot.io.status import KeeperStatus
from pilot.provisioning.pilot_jobs import JobEnded, JobNoticed, PilotJobs
from pilot.provisioning.scaling_policy import Backoff, Scaling, Situation, decide
from pilot.provisioning.scheduler import JobPhase, Queue, Snapshot

T = TypeVar("T")

NEVER_HEARD_S = 10.0
"""A scheduler that has not answered once was given no job by us: so long it is asked at the end for those of an earlier
coordinator."""


class Provider(Protocol):
    """What the keeper needs of :class:`pilot.provisioning.provider.PilotProvider`."""

    def submit(self, command: str, job_name: str, walltime_s: float | None = None) -> str:
        """Submit a job; its id."""

    def cancel(self, jobs: Sequence[str]) -> list[str]:
        """Cancel jobs; those that the scheduler agreed to."""


@dataclass(frozen=True, slots=True)
class Troubled:
    """The scheduler does not answer or takes no jobs: ``text`` says so; it is empty when that is over."""

    text: str


KeeperEvent = JobNoticed | JobEnded | Troubled


def pool_name(run_dir: Path) -> str:
    """The name of a pool's jobs: unique to its run directory, the same after a restart of its coordinator."""
    return f"pilot-{hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:10]}"


class Keeper:
    """Keeps the pilots of one pool.

    Parameters
    ----------
    site, provider, queue : where, and what speaks to the scheduler (both block; they are called in a thread)
    command : the shell command of an agent
    name : of the jobs, see :func:`pool_name`
    report : is told what happens, on the event loop
    clock : Unix time
    """

    def __init__(
        self,
        site: Site,
        provider: Provider,
        queue: Queue,
        *,
        command: str,
        name: str,
        report: Callable[[KeeperEvent], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.book = PilotJobs(site)
        self._site = site
        self._provider = provider
        self._queue = queue
        self._command = command
        self._name = name
        self._report = report
        self._clock = clock
        self._wanted = 0
        self._warm_up_s = 0.0
        self._spare: frozenset[str] = frozenset()
        self._answered = False
        self._heard = False
        self._snapshot = Snapshot()
        self._decision = Scaling()
        self._backoff = Backoff(site.poll_s)
        self._troubles = {"poll": "", "submit": "", "cancel": ""}
        self._poked = asyncio.Event()
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "scheduler")

    @property
    def answers(self) -> bool:
        """Whether the scheduler answered when it was asked last."""
        return self._answered

    # --- what the coordinator says

    def want(self, nodes: int, *, spare: Iterable[str] = (), warm_up_s: float = 0.0) -> None:
        """Keep pilots for ``nodes`` nodes, from now on.

        ``spare`` are jobs that run and may be cancelled where there are too many; ``warm_up_s`` is what a trainer needs
        to start on a new node: no pilot is worth less.
        """
        self._wanted, self._spare, self._warm_up_s = nodes, frozenset(spare), warm_up_s
        self._poked.set()

    def registered(self, job: str, restart: int = 0) -> None:
        """The agent of ``job`` is in the pool. A job that is not ours (somebody's own batch script) is ignored."""
        self.book.registered(self._clock(), job, restart)

    def noticed(self, job: str, word: str) -> None:
        """The agent of ``job`` said that it leaves, because of ``word``: it is replaced."""
        self.book.noticed(job, word)
        self._poked.set()

    def status(self) -> KeeperStatus:
        """For people."""
        jobs = self.book.kept(())
        staying = [job for job in jobs if not job.leaving]
        return KeeperStatus(
            wanted_nodes=self._wanted,
            pending=sum(job.phase is JobPhase.PENDING for job in staying),
            running=sum(job.phase is JobPhase.RUNNING for job in staying),
            leaving=len(jobs) - len(staying),
            others=self._snapshot.others,
            idle_nodes=self._snapshot.idle_nodes,
            planned_nodes=self._snapshot.planned_nodes,
            endings={str(ending): count for ending, count in sorted(self.book.endings.items())},
            trouble=self._trouble(),
            held_back=self._decision.held_back,
        )

    # --- the loop

    async def run(self) -> None:
        """Poll every ``poll_s``; act then, and at once when something was said. Until cancelled."""
        due_s = self._clock()
        while True:
            self._poked.clear()
            async with self._turn:
                if self._clock() >= due_s:
                    due_s = self._clock() + self._site.poll_s
                    await self._poll()
                if self._answered:
                    await self._act()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._poked.wait(), max(0.0, due_s - self._clock()))

    async def down(self, limit_s: float) -> list[str]:
        """Cancel every job, wait until all are gone, kill what outlives its grace; the jobs left after ``limit_s``.

        Call it when :meth:`run` has been cancelled. A submission that was under way is waited for and cancelled too.
        """
        began_s = self._clock()
        async with self._turn:
            while True:
                await self._poll()
                waited_s = self._clock() - began_s
                never_heard = not self._heard and waited_s > NEVER_HEARD_S
                if not self.book.jobs and (self._answered or never_heard):
                    break
                await self._cancel(self.book.uncancelled())
                await self._kill_overdue()
                if waited_s > limit_s:
                    break
                await asyncio.sleep(min(1.0, self._site.poll_s))
        self._thread.shutdown(wait=False)
        return list(self.book.jobs)

    async def _poll(self) -> None:
        asked_s = self._clock()
        try:
            self._snapshot = await self._call(self._queue.poll, list(self.book.jobs), asked_s)
        except SubmitError as error:
            # It says nothing of the jobs: everything stays as it was, and nothing is done, until it answers again.
            self._answered = False
            self._say("poll", str(error))
            return
        self._answered = self._heard = True
        self._say("poll", self._snapshot.trouble)
        now_s = self._clock()
        news = self.book.take(now_s, asked_s, self._snapshot)
        if any(isinstance(item, JobEnded) and item.failed for item in news):
            self._backoff.failed(now_s)
        elif self.book.works(now_s, self._backoff.failed_s):
            self._backoff.worked()
        for item in news:
            self._report(item)

    async def _act(self) -> None:
        self._decision = decide(self._site, self._situation())
        await self._cancel(self._decision.cancel)
        await self._kill_overdue()
        for walltime_s in self._decision.submit:
            if not await self._submit(walltime_s):
                break

    def _situation(self) -> Situation:
        shown = self._snapshot
        return Situation(
            now_s=self._clock(),
            wanted_nodes=self._wanted,
            jobs=self.book.kept(self._spare),
            others=shown.others,
            idle_nodes=shown.idle_nodes,
            planned_nodes=shown.planned_nodes,
            window_s=shown.window_s,
            warm_up_s=self._warm_up_s,
            resume_s=self._backoff.resume_s,
            yielding=self.book.yielding(self._clock()),
        )

    async def _submit(self, walltime_s: float) -> bool:
        try:
            job = await self._call(self._provider.submit, self._command, self._name, walltime_s)
        except SubmitError as error:
            self._backoff.failed(self._clock())
            self._say("submit", str(error))
            return False
        self.book.submitted(self._clock(), job, walltime_s)
        self._say("submit", "")
        return True

    async def _cancel(self, jobs: Sequence[str]) -> None:
        if jobs:
            with self._said_as("cancel"):
                self.book.cancelled(self._clock(), await self._call(self._provider.cancel, jobs))

    async def _kill_overdue(self) -> None:
        if jobs := self.book.overdue(self._clock()):
            with self._said_as("cancel"):
                await self._call(self._queue.kill, jobs)

    @contextlib.contextmanager
    def _said_as(self, about: str) -> Iterator[None]:
        try:
            yield
        except SubmitError as error:
            self._say(about, str(error))
        else:
            self._say(about, "")

    async def _call(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _trouble(self) -> str:
        return "; ".join(text for text in self._troubles.values() if text)

    def _say(self, about: str, text: str) -> None:
        """Report trouble when it begins, changes or ends."""
        if self._troubles[about] != text:
            self._troubles[about] = text
            self._report(Troubled(self._trouble()))
