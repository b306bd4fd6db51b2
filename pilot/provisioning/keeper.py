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
from dataclasses import dataclass, replace
from pathlib import Path

from pilot.core.errors import SubmissionRefused, SubmitError
from pilot.protocol.pool_status import KeeperStatus
from pilot.provisioning.failures import Failures
from pilot.provisioning.nodes_aside import Run
from pilot.provisioning.pilot_jobs import JobEnded, JobEvent, PilotJobs
from pilot.provisioning.retry import Retry, Troubled, Troubles
from pilot.provisioning.scaling_policy import PoolDemand, Scaling, decide
from pilot.provisioning.scheduler import CancelRefused, JobPhase, QueueSnapshot, SchedulerThread
from pilot.provisioning.submit_limit import SubmitLimit
from pilot.site.site import Site

NEVER_HEARD_S = 10.0
"""A scheduler that never answered has no jobs from us: at the end it is polled only this long for an earlier
coordinator's jobs."""

DOWN_POLL_S = 1.0
DOWN_GROWTH = 1.5
"""At the end the scheduler is polled soon, then less and less often, down to the usual rate."""

LEAVE_S = 30.0
"""At the end, a job whose agent has left is cancelled only after this time: it is removing the agent's files."""

KeeperEvent = JobEvent | Troubled


def pool_name(run_dir: Path) -> str:
    """The name of a pool's jobs: unique to its run directory, the same after a restart of its coordinator."""
    return f"pilot-{hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:10]}"


@dataclass(frozen=True, slots=True)
class Demand:
    """The coordinator's wish; see :meth:`Keeper.want`."""

    nodes: int = 0
    spare: frozenset[str] = frozenset()
    warm_up_s: float = 0.0


class Keeper:
    """Keeps the pilots of one pool on ``site``, through ``scheduler``. ``report`` is called on the event loop
    with each event. ``clock`` is monotonic, in seconds; the scheduler's times are Unix times."""

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
        self._demand = Demand()
        self._snapshot: QueueSnapshot | None = None
        self._answers = False
        self._scaling = Scaling()
        self._backoff = Retry()
        self._limit = SubmitLimit()
        self._troubles = Troubles(report)
        self._failures = Failures(site, self._troubles, self._backoff)
        self._poked = asyncio.Event()
        self._turn = asyncio.Lock()

    @property
    def answers(self) -> bool:
        """Whether the scheduler answered the last poll."""
        return self._answers

    # --- calls of the coordinator

    def want(
        self, nodes: int, *, spare: Iterable[str] = (), present: Iterable[str] = (), warm_up_s: float = 0.0
    ) -> None:
        """Keep pilots for ``nodes`` nodes from now on. Must be called at least as often as the scheduler is polled.
        ``spare`` are running jobs that may be cancelled if there are too many; ``present`` are those with a connected
        agent; ``warm_up_s`` is how long a trainer takes to start on a new node, so shorter jobs are useless.
        """
        self.book.connected(self._clock(), frozenset(present))
        self._demand = Demand(nodes, frozenset(spare), warm_up_s)
        self._report_trouble()  # now: jobs that have left are no contradiction any more
        self._poked.set()

    def registered(self, job: str, restart: int = 0) -> None:
        """The agent of ``job`` is in the pool. A job that is not ours (somebody's own batch script) is ignored."""
        self.book.registered(self._clock(), job, restart)

    def end_s(self, job: str) -> float | None:
        """When the nodes of ``job`` will have left (Unix time); None: not known."""
        record = self.book.jobs.get(job)
        return record.end_s(self._site) if record is not None else None

    def noticed(self, job: str, cause: str) -> None:
        """The agent of ``job`` is leaving, because of ``cause``; replace it."""
        self.book.noticed(self._clock(), job, cause)
        self._poked.set()

    def left(self, job: str) -> None:
        """The agent of ``job`` has left the pool, as it had announced or was told; its job is about to end."""
        self.book.left(job)

    def clear(self, node: str) -> bool:
        """Submit pilots to ``node`` again; returns whether it was set aside."""
        return self._failures.nodes.clear(node)

    def staying(self) -> list[str]:
        """Our running and queued jobs that are neither leaving nor held."""
        return [job.job for job in self.book.scaling_jobs(self._clock()) if not job.leaving and not job.held]

    def status(self) -> KeeperStatus:
        """The keeper's status, for users."""
        jobs = self.book.scaling_jobs(self._clock())
        staying = [job for job in jobs if not job.leaving]
        snapshot = self._snapshot or QueueSnapshot()
        return KeeperStatus(
            scheduler=self._site.scheduler,
            wanted_nodes=self._demand.nodes,
            pending=sum(job.phase is JobPhase.PENDING for job in staying),
            running=sum(job.phase is JobPhase.RUNNING for job in staying),
            waited_s=self.book.waited_s(self._clock()),
            expected_unix_s=self.book.expected_s(),
            leaving=len(jobs) - len(staying),
            suspended=sum(job.phase is JobPhase.SUSPENDED for job in jobs),
            waits_for=self.book.waits_for(),
            others=snapshot.others,
            idle_nodes=snapshot.idle_nodes,
            planned_nodes=snapshot.planned_nodes,
            endings={str(ending): count for ending, count in sorted(self.book.endings.items())},
            trouble=self._troubles.text,
            held_back=self._scaling.held_back,
            set_aside=self._failures.set_aside(self._clock()),
        )

    # --- the loop

    async def run(self) -> None:
        """Until cancelled, poll every ``poll_s`` and act; also act at once on messages of the coordinator."""
        due_s = self._clock()
        while True:
            self._poked.clear()
            async with self._turn:
                if self._clock() >= due_s:
                    due_s = self._clock() + self._site.poll_s
                    await self._poll()
                if self._answers and self._snapshot is not None:
                    await self._act(self._snapshot)
            # Not asyncio.wait_for: in Python 3.11 it swallows a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due_s - self._clock())):
                    await self._poked.wait()

    async def down(self, limit_s: float) -> list[str]:
        """Cancel every job, wait until all have ended, kill those that outlive their grace; returns the jobs left after
        ``limit_s``. Jobs whose agents have left get ``LEAVE_S`` to end by themselves.

        Call it when :meth:`run` has been cancelled. A submission in progress is waited for and cancelled, too.
        """
        began_s = self._clock()
        pause_s = min(DOWN_POLL_S, self._site.poll_s)
        async with self._turn:
            ending = self.book.ending()
            self.book.hurry()
            self.book.connected(began_s, frozenset())  # no more agents' reports: only the scheduler counts
            while True:
                await self._poll()
                waited_s = self._clock() - began_s
                never_heard = self._snapshot is None and waited_s > NEVER_HEARD_S
                if not self.book.jobs and (self._answers or never_heard):
                    break
                spared = ending if waited_s < LEAVE_S else ()
                await self._cancel([job for job in self.book.uncancelled() if job not in spared], pause_s)
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
            self._snapshot = await self._scheduler.poll(list(self.book.jobs), time.time())
        except SubmitError as error:
            # No answer implies nothing about the jobs: nothing changes and nothing is done until there is one.
            self._answers = False
            self._troubles.set("poll", str(error))
            return
        self._answers = True
        self._troubles.set("poll", "")
        now_s = self._clock()
        self.book.unix_ahead_s = time.time() - now_s
        events = self.book.update(now_s, asked_s, self._snapshot)
        if not self.book.resist():
            self._troubles.set("cancel", "")
        self._report_trouble()
        await self._report_all(events)
        await self._cancel(self.book.to_cancel(now_s))

    def _report_trouble(self) -> None:
        """Report the last answer's trouble, and the jobs over which the scheduler and the agents contradict each
        other."""
        if not self._answers or self._snapshot is None:
            return
        trouble = [self._snapshot.trouble] if self._snapshot.trouble else []
        if jobs := self.book.contradicted():
            trouble.append(f"the scheduler reports jobs as ended whose agents still answer: {', '.join(jobs)}")
        self._troubles.set("answer", "; ".join(trouble))

    async def _report_all(self, events: Sequence[JobEvent]) -> None:
        now_s = self._clock()
        for event in events:
            self._report(event)
        failed = [await self._explained(event) for event in events if isinstance(event, JobEnded) and event.failed]
        self._failures.judge(now_s, self.book.joined(), failed)
        if not failed and self.book.works(now_s, self._backoff.tried_s):
            self._failures.over()

    async def _explained(self, event: JobEnded) -> Run:
        """The run of a pilot that failed, with why it failed in its last words."""
        assert event.failed is not None
        words = await self._scheduler.last_line(event.job)
        return replace(event.failed, reason=f"{event.detail}: {words}" if words else event.detail)

    async def _act(self, snapshot: QueueSnapshot) -> None:
        aside = self._failures.excluded
        await self._cancel(self.book.barred(aside))
        now_s = self._clock()
        situation = PoolDemand(
            now_s,
            self._demand.nodes,
            self.book.scaling_jobs(now_s, self._demand.spare),
            snapshot,
            self._demand.warm_up_s,
            self._backoff.again_s,
            self.book.yielding(now_s),
            self.book.just_submitted(now_s),
            self._limit,
        )
        self._scaling = decide(self._site, situation)
        await self._cancel(self._scaling.cancel)
        await self._kill_overdue()
        for walltime_s in self._scaling.submit:
            if not await self._submit(walltime_s, aside):
                break

    async def _submit(self, walltime_s: float, without: frozenset[str]) -> bool:
        """Submit a job that does not run on the nodes ``without``; returns whether the scheduler accepted it."""
        ours = len(self.book.jobs)
        try:
            job = await self._scheduler.submit(walltime_s, without)
        except SubmitError as error:
            if ours and isinstance(error, SubmissionRefused):
                if self._limit.refused(self._clock(), ours, error.said, self._site.poll_s):
                    self._troubles.tell(self._limit.sentence())
                return False
            self._backoff.tried(self._clock(), self._site.poll_s)
            self._troubles.set("submit", str(error))
            return False
        self._limit.accepted(ours)
        self.book.submitted(self._clock(), job, walltime_s, without)
        self._troubles.set("submit", "")
        return True

    async def _cancel(self, jobs: Sequence[str], again_s: float | None = None) -> None:
        """Request to cancel ``jobs``; if that has no effect, repeat it after ``again_s``, then at growing intervals."""
        now_s = self._clock()
        if due := self.book.due(now_s, jobs, lambda record: record.cancelling):
            self.book.asked_to_cancel(now_s, due, again_s or self._site.poll_s)
            try:
                taken = await self._scheduler.cancel(due)
            except SubmitError as error:
                self._troubles.set("cancel", str(error))
                taken = error.taken if isinstance(error, CancelRefused) else []
            await self._report_all(self.book.cancelled(self._clock(), taken))

    async def _kill_overdue(self) -> None:
        now_s = self._clock()
        if due := self.book.due(now_s, self.book.overdue(now_s), lambda record: record.killing):
            self.book.killed(now_s, due)
            try:
                await self._scheduler.kill(due)
            except SubmitError as error:
                self._troubles.set("cancel", str(error))
