"""Keeps pilots submitted: polls the scheduler, tracks each job, and replaces those that end.
:mod:`pilot.provisioning.scaling_policy` decides what to do from what :mod:`pilot.provisioning.pilot_jobs` knows; this
is the loop around them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pilot.core.errors import SubmitError
from pilot.protocol.pool_status import KeeperStatus
from pilot.provisioning.pilot_jobs import JobEnded, JobNews, PilotJobs
from pilot.provisioning.retry import Retry, Troubled, Troubles
from pilot.provisioning.scaling_policy import Scaling, Situation, decide
from pilot.provisioning.scheduler import JobPhase, QueueSnapshot, SchedulerThread
from pilot.site.site import Site

NEVER_HEARD_S = 10.0
"""A scheduler that never answered has no jobs from us: at the end it is polled only this long for an earlier
coordinator's jobs."""


DOWN_POLL_S = 1.0
DOWN_GROWTH = 1.5
"""At the end the scheduler is polled soon, then less and less often, down to the usual rate."""

KeeperEvent = JobNews | Troubled


def pool_name(run_dir: Path) -> str:
    """The name of a pool's jobs: unique to its run directory, the same after a restart of its coordinator."""
    return f"pilot-{hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:10]}"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the coordinator wants; see :meth:`Keeper.want`."""

    nodes: int = 0
    spare: frozenset[str] = frozenset()
    warm_up_s: float = 0.0


class Keeper:
    """Keeps the pilots of one pool.

    Parameters
    ----------
    site, scheduler : where to submit, and what submits, shows and cancels jobs
    report : called with what happens, on the event loop
    clock : monotonic, in seconds; the scheduler's times are Unix times
    """

    def __init__(
        self,
        site: Site,
        scheduler: SchedulerThread,
        report: Callable[[KeeperEvent], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.book = PilotJobs(site)
        self._site = site
        self._scheduler = scheduler
        self._report = report
        self._clock = clock
        self._wish = Wish()
        self._heard: QueueSnapshot | None = None
        self._answers = False
        self._scaling = Scaling()
        self._backoff = Retry()
        self._troubles = Troubles(report)
        self._poked = asyncio.Event()
        self._turn = asyncio.Lock()

    @property
    def answers(self) -> bool:
        """Whether the scheduler answered the last time."""
        return self._answers

    # --- what the coordinator says

    def want(
        self, nodes: int, *, spare: Iterable[str] = (), present: Iterable[str] = (), warm_up_s: float = 0.0
    ) -> None:
        """Keep pilots for ``nodes`` nodes from now on. Must be called at least as often as the scheduler is polled.
        ``spare`` are running jobs that may be cancelled if there are too many; ``present`` are those with a connected
        agent; ``warm_up_s`` is how long a trainer takes to start on a new node, so shorter jobs are useless.
        """
        self.book.connected(self._clock(), frozenset(present))
        self._wish = Wish(nodes, frozenset(spare), warm_up_s)
        self._say_what_was_heard()  # report queued news first: later there would be none about jobs that have left
        self._poked.set()

    def registered(self, job: str, restart: int = 0) -> None:
        """The agent of ``job`` is in the pool. A job that is not ours (somebody's own batch script) is ignored."""
        self.book.registered(self._clock(), job, restart)

    def end_s(self, job: str) -> float | None:
        """When its nodes will have left (Unix time), as far as known."""
        record = self.book.jobs.get(job)
        return record.end_s(self._site) if record is not None else None

    def noticed(self, job: str, word: str) -> None:
        """The agent of ``job`` is leaving, because of ``word``; replace it."""
        self.book.noticed(self._clock(), job, word)
        self._poked.set()

    def staying(self) -> list[str]:
        """Our running and queued jobs that are not leaving."""
        return [job.job for job in self.book.kept(self._clock(), ()) if not job.leaving]

    def status(self) -> KeeperStatus:
        """The status for users."""
        jobs = self.book.kept(self._clock(), ())
        staying = [job for job in jobs if not job.leaving]
        heard = self._heard or QueueSnapshot()
        return KeeperStatus(
            scheduler=self._site.scheduler,
            wanted_nodes=self._wish.nodes,
            pending=sum(job.phase is JobPhase.PENDING for job in staying),
            running=sum(job.phase is JobPhase.RUNNING for job in staying),
            waited_s=self.book.waited_s(self._clock()),
            expected_unix_s=self.book.expected_s(),
            leaving=len(jobs) - len(staying),
            suspended=sum(job.phase is JobPhase.SUSPENDED for job in jobs),
            waits_for=self.book.waits_for(),
            others=heard.others,
            idle_nodes=heard.idle_nodes,
            planned_nodes=heard.planned_nodes,
            endings={str(ending): count for ending, count in sorted(self.book.endings.items())},
            trouble=self._troubles.text,
            held_back=self._scaling.held_back,
        )

    # --- the loop

    async def run(self) -> None:
        """Until cancelled, poll every ``poll_s`` and act; also act at once on news."""
        due_s = self._clock()
        while True:
            self._poked.clear()
            async with self._turn:
                if self._clock() >= due_s:
                    due_s = self._clock() + self._site.poll_s
                    await self._poll()
                if self._answers and self._heard is not None:
                    await self._act(self._heard)
            # Not asyncio.wait_for: in Python 3.11 it swallows a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due_s - self._clock())):
                    await self._poked.wait()

    async def down(self, limit_s: float) -> list[str]:
        """Cancel every job, wait until all have ended, kill those that outlive their grace; returns the jobs left after
        ``limit_s``.

        Call it when :meth:`run` has been cancelled. A submission in progress is waited for and cancelled, too.
        """
        began_s = self._clock()
        pause_s = min(DOWN_POLL_S, self._site.poll_s)
        async with self._turn:
            self.book.hurry()
            self.book.connected(began_s, frozenset())  # no more agents' reports: only the scheduler counts
            while True:
                await self._poll()
                waited_s = self._clock() - began_s
                never_heard = self._heard is None and waited_s > NEVER_HEARD_S
                if not self.book.jobs and (self._answers or never_heard):
                    break
                await self._cancel(self.book.uncancelled(), pause_s)
                await self._kill_overdue()
                if waited_s > limit_s:
                    break
                await asyncio.sleep(pause_s)
                pause_s = min(DOWN_GROWTH * pause_s, self._site.poll_s)
        self._scheduler.close()
        return list(self.book.jobs)

    async def _poll(self) -> None:
        asked_s = self._clock()
        try:
            self._heard = await self._scheduler.poll(list(self.book.jobs), time.time())
        except SubmitError as error:
            # No answer says nothing about the jobs: nothing changes and nothing is done until there is one.
            self._answers = False
            self._troubles.say("poll", str(error))
            return
        self._answers = True
        now_s = self._clock()
        self.book.unix_ahead_s = time.time() - now_s
        news = self.book.take(now_s, asked_s, self._heard)
        self._say_what_was_heard()
        self._tell(news)
        await self._cancel(self.book.to_cancel(now_s))

    def _say_what_was_heard(self) -> None:
        if self._answers and self._heard is not None:
            self._troubles.say("poll", "; ".join(filter(None, [self._heard.trouble, self._contradiction()])))

    def _contradiction(self) -> str:
        jobs = self.book.contradicted()
        named = f"job{'s' * (len(jobs) > 1)} {', '.join(jobs)}"
        return f"the scheduler says that {named} ended, but their agents still answer" if jobs else ""

    def _tell(self, news: Sequence[JobNews]) -> None:
        now_s = self._clock()
        if any(isinstance(item, JobEnded) and item.failed for item in news):
            self._backoff.tried(now_s, self._site.poll_s)
        elif self.book.works(now_s, self._backoff.tried_s):
            self._backoff.worked()
        for item in news:
            self._report(item)

    async def _act(self, heard: QueueSnapshot) -> None:
        self._scaling = decide(self._site, self._situation(heard))
        await self._cancel(self._scaling.cancel)
        await self._kill_overdue()
        for walltime_s in self._scaling.submit:
            if not await self._submit(walltime_s):
                break

    def _situation(self, heard: QueueSnapshot) -> Situation:
        return Situation(
            now_s=self._clock(),
            wanted_nodes=self._wish.nodes,
            jobs=self.book.kept(self._clock(), self._wish.spare),
            others=heard.others,
            idle_nodes=heard.idle_nodes,
            planned_nodes=heard.planned_nodes,
            window_s=heard.window_s,
            warm_up_s=self._wish.warm_up_s,
            resume_s=self._backoff.again_s,
            yielding=self.book.yielding(self._clock()),
            submitted=self.book.just_submitted(self._clock()),
        )

    async def _submit(self, walltime_s: float) -> bool:
        """Submit a job; returns whether the scheduler accepted it."""
        try:
            job = await self._scheduler.submit(walltime_s)
        except SubmitError as error:
            self._backoff.tried(self._clock(), self._site.poll_s)
            self._troubles.say("submit", str(error))
            return False
        self.book.submitted(self._clock(), job, walltime_s)
        self._troubles.say("submit", "")
        return True

    async def _cancel(self, jobs: Sequence[str], again_s: float | None = None) -> None:
        """Request to cancel ``jobs``; if that has no effect, repeat it after ``again_s``, then at growing intervals."""
        now_s = self._clock()
        if due := self.book.due(now_s, jobs, lambda record: record.cancelling):
            self.book.asked_to_cancel(now_s, due, again_s or self._site.poll_s)
            with self._troubles.of("cancel"):
                taken = await self._scheduler.cancel(due)
                self._tell(self.book.cancelled(self._clock(), taken))

    async def _kill_overdue(self) -> None:
        now_s = self._clock()
        if due := self.book.due(now_s, self.book.overdue(now_s), lambda record: record.killing):
            self.book.killed(now_s, due)
            with self._troubles.of("cancel"):
                await self._scheduler.kill(due)
