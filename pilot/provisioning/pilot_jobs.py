"""The records of our jobs, from the scheduler's answers and the agents' reports. No side effects.

A job is over when the scheduler reports that, and its agent has been in the pool and is no longer connected.
For a job whose agent never arrived, the scheduler must have agreed to a cancellation; until then it is *doubtful*: it
is not counted on, but counts among the jobs that may exist.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from pilot.provisioning.job_record import STEADY_S, WALLTIME_CAUSE, YIELD_POLLS, JobRecord
from pilot.provisioning.nodes_aside import Run
from pilot.provisioning.retry import Retry
from pilot.provisioning.scaling_policy import ScalingJob
from pilot.provisioning.scheduler import JobEnd, JobPhase, JobView, QueueSnapshot
from pilot.site.site import Site

PREEMPTS = "the scheduler preempts it"
ENDS = f"its {WALLTIME_CAUSE} ends"

REASONS_SHOWN = 3
"""Schedulers may word a reason differently for each job."""

ABSENT_POLLS = 2
"""A job that is missing from this many answers in a row has ended."""


@dataclass(frozen=True, slots=True)
class JobNoticed:
    """The scheduler will end ``job``, because of ``cause``; it is killed at ``deadline_s`` (Unix time; None: after the
    site's grace) at the latest."""

    job: str
    deadline_s: float | None
    cause: str = PREEMPTS


@dataclass(frozen=True, slots=True)
class EndKnown:
    """The nodes of ``job`` will have left by ``end_s`` (Unix time); None: that is no longer known."""

    job: str
    end_s: float | None


@dataclass(frozen=True, slots=True)
class JobSuspended:
    """The processes of ``job`` are stopped; another job may have its nodes."""

    job: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """``job`` is over. ``failed``: its run, if the failure is ours and not the scheduler's doing; else None."""

    job: str
    ending: JobEnd
    detail: str
    failed: Run | None = None


JobEvent = EndKnown | JobNoticed | JobSuspended | JobEnded


@dataclass(slots=True)
class PilotJobs:
    """Our jobs that may exist, by id; how many ended in which way, and when the last ones were submitted and preempted.
    ``present`` are the jobs with a connected agent. ``unix_ahead_s`` is the difference between Unix time, used by the
    scheduler, and the clock of ``now_s``.
    """

    site: Site
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    present: frozenset[str] = frozenset()
    endings: Counter[JobEnd] = field(default_factory=Counter)
    unix_ahead_s: float = 0.0
    _preempted_s: deque[float] = field(default_factory=deque)
    _submitted_s: deque[float] = field(default_factory=deque)

    # --- our actions

    def submitted(self, now_s: float, job: str, walltime_s: float, without: Iterable[str] = ()) -> None:
        """We submitted ``job``, which does not run on the nodes ``without``."""
        self.jobs[job] = JobRecord(job, now_s, walltime_s, without=frozenset(without))
        self._submitted_s.append(now_s)

    def asked_to_cancel(self, now_s: float, jobs: Iterable[str], again_s: float) -> None:
        """The scheduler was asked to cancel ``jobs``; do not ask again before ``again_s`` have passed."""
        for record in map(self.jobs.__getitem__, jobs):
            record.lost = record.lost or (record.joined_s is not None and record.dead(now_s, self.site))
            record.mute = record.mute or (record.joined_s is None and record.dead(now_s, self.site))
            record.cancelling.tried(now_s, again_s)
            record.asked_s = now_s if record.asked_s is None else record.asked_s

    def cancelled(self, now_s: float, jobs: Iterable[str]) -> list[JobEnded]:
        """The scheduler agreed to cancel ``jobs``, or they are over; returns the end of each doubtful one."""
        ended: list[JobEnded] = []
        for record in map(self.jobs.__getitem__, jobs):
            if record.doubtful:
                ended.append(self._end(now_s, record))
            else:
                record.cancelled_s = now_s
        return ended

    def killed(self, now_s: float, jobs: Iterable[str]) -> None:
        """The scheduler was asked to kill ``jobs``."""
        for job in jobs:
            self.jobs[job].killing.tried(now_s, self.site.poll_s)

    def hurry(self) -> None:
        """Retry everything without a pause."""
        for record in self.jobs.values():
            record.cancelling, record.killing = Retry(), Retry()

    # --- reports of agents

    def registered(self, now_s: float, job: str, restart: int) -> None:
        """The agent of ``job`` is in the pool."""
        record = self.jobs.get(job)
        if record is None:
            return
        if restart > record.restart:
            record.requeued(restart)
        record.phase, record.doubtful, record.suspended = JobPhase.RUNNING, False, False
        record.joined_s = now_s if record.joined_s is None else record.joined_s
        record.alive_s = now_s

    def noticed(self, now_s: float, job: str, cause: str) -> None:
        """The agent of ``job`` is leaving, because of ``cause``."""
        if job in self.jobs:
            self.jobs[job].cause, self.jobs[job].noticed_s = cause, now_s

    def left(self, job: str) -> None:
        """The agent of ``job`` has left, as it had announced or was told."""
        if job in self.jobs:
            self.jobs[job].left = True

    def connected(self, now_s: float, jobs: frozenset[str]) -> None:
        """The agents of ``jobs`` are connected now, and no others."""
        for job in self.present | jobs:
            if (record := self.jobs.get(job)) is not None:
                record.alive_s = now_s
        self.present = jobs

    # --- answers of the scheduler

    def update(self, now_s: float, asked_s: float, snapshot: QueueSnapshot) -> list[JobEvent]:
        """Process the scheduler's answer to a poll made at ``asked_s``; returns the changes."""
        events: list[JobEvent] = []
        self.connected(now_s, self.present)
        for view in snapshot.jobs.values():
            if view.phase is not JobPhase.OVER or (view.job in self.jobs and view.job not in snapshot.listed):
                events += self._shown(now_s, view)
        shown = snapshot.jobs.keys() | snapshot.listed
        for record in [r for r in self.jobs.values() if r.job not in shown and r.submitted_s < asked_s]:
            record.absent += 1
            if record.absent >= ABSENT_POLLS:
                events += self._over(now_s, record)
        return events

    def contradicted(self) -> list[str]:
        """Jobs whose agents answer although the scheduler reports them as over, or does not know them."""
        records = (self.jobs[job] for job in sorted(self.present) if job in self.jobs)
        return [r.job for r in records if r.absent >= ABSENT_POLLS or r.phase is JobPhase.OVER]

    def waits_for(self) -> str:
        """Why the pending jobs are waiting, according to the scheduler: the commonest reasons, and how many jobs have
        each; "" if that is not known."""
        reasons = Counter(r.view.detail for r in self._pending() if r.view).most_common()
        others = sum(count for _, count in reasons[REASONS_SHOWN:])
        shown = [f"{count} × {reason}" for reason, count in reasons[:REASONS_SHOWN]]
        return "; ".join([*shown, f"{others} for other reasons"] if others else shown)

    def waited_s(self, now_s: float) -> float | None:
        """How long the first of the pending jobs has been waiting; None if there is none."""
        return max((now_s - r.submitted_s for r in self._pending()), default=None)

    def expected_s(self) -> float | None:
        """When the scheduler expects the first of the pending jobs to start (Unix time); None: not known."""
        return min((r.view.start_s for r in self._pending() if r.view and r.view.start_s), default=None)

    def _pending(self) -> list[JobRecord]:
        return [r for r in self.jobs.values() if r.phase is JobPhase.PENDING and r.cancelled_s is None]

    # --- input of a decision

    def scaling_jobs(self, now_s: float, spare: Collection[str] = ()) -> list[ScalingJob]:
        """The jobs as needed for a decision, with those that are ``spare``."""
        return [
            ScalingJob(
                *(r.job, r.phase, r.submitted_s, r.walltime_s, r.leaving(now_s, self.site), r.job in spare),
                held=r.held(now_s, now_s + self.unix_ahead_s, self.site),
            )
            for r in self.jobs.values()
        ]

    def yielding(self, now_s: float) -> int:
        """How many of our jobs others are preempting, or have preempted in the last ``YIELD_POLLS`` polls.

        Slurm tries to start a job as soon as it is submitted, before those that wait for nodes to become free: a
        replacement could take a node that the preempting job needs.
        """
        _forget(self._preempted_s, now_s - YIELD_POLLS * self.site.poll_s)
        return len(self._preempted_s) + sum(r.yields(now_s, self.site) for r in self.jobs.values())

    def just_submitted(self, now_s: float) -> int:
        """How many jobs were submitted within the last poll's time."""
        _forget(self._submitted_s, now_s - self.site.poll_s)
        return len(self._submitted_s)

    # --- jobs to cancel and kill

    def to_cancel(self, now_s: float) -> list[str]:
        """Jobs that are of no more use: doubtful ones and dead ones."""
        return [r.job for r in self.jobs.values() if r.doubtful or r.dead(now_s, self.site)]

    def barred(self, aside: Collection[str]) -> list[str]:
        """The newest pending job, if all of them are kept from nodes that are not set ``aside`` any more."""
        pending = sorted(self._pending(), key=lambda r: r.submitted_s)
        return [r.job for r in pending[-1:]] if all(r.without.difference(aside) for r in pending) else []

    def uncancelled(self) -> list[str]:
        """The jobs to cancel at the end, pending ones first."""
        records = [r for r in self.jobs.values() if r.cancelled_s is None]
        return [r.job for r in sorted(records, key=lambda r: r.phase is not JobPhase.PENDING)]

    def ending(self) -> set[str]:
        """The jobs whose agents have left the pool, and which end by themselves."""
        return {r.job for r in self.jobs.values() if r.left}

    def due(self, now_s: float, jobs: Iterable[str], retry: Callable[[JobRecord], Retry]) -> list[str]:
        """The ``jobs`` that may be tried (again) now, with growing pauses between attempts."""
        return [job for job in jobs if job in self.jobs and retry(self.jobs[job]).due(now_s)]

    def overdue(self, now_s: float) -> list[str]:
        """Jobs that outlived the first attempt to cancel them by more than the site's grace."""
        limit_s = self.site.grace_s + self.site.poll_s
        return [r.job for r in self.jobs.values() if r.asked_s is not None and now_s - r.asked_s > limit_s]

    def resist(self) -> bool:
        """Whether there are jobs that the scheduler has not agreed to cancel when asked, or that had to be killed."""
        return any(r.asked_s is not None and (r.cancelled_s is None or r.killing.tries) for r in self.jobs.values())

    def works(self, now_s: float, after_s: float) -> bool:
        """Whether a pilot that joined after ``after_s`` has been in the pool long enough to show that pilots work."""
        return any(after_s < r.joined_s <= now_s - STEADY_S for r in self.jobs.values() if r.joined_s is not None)

    def joined(self) -> list[Run]:
        """The runs of the pilots that are in the pool, and whose nodes are known."""
        records = [r for r in self.jobs.values() if r.joined_s is not None and r.view and r.view.nodes]
        return [r.run(r.joined_s, self.unix_ahead_s) for r in records if r.joined_s is not None and not r.left]

    # --- one job

    def _shown(self, now_s: float, view: JobView) -> list[JobEvent]:
        """Process a view of our job. An unknown one is from before a restart, or its submission seemed to have
        failed."""
        # For a running job the scheduler shows what was granted, not what was requested.
        asked_s = view.walltime_s if view.phase is JobPhase.PENDING else None
        record = self.jobs.setdefault(view.job, JobRecord(view.job, now_s, asked_s or self.site.walltime_s))
        waits_again = view.phase is JobPhase.PENDING and record.phase is JobPhase.RUNNING
        if view.restart > record.restart or waits_again:
            self._preempted_s.append(now_s)
            record.requeued(max(view.restart, record.restart))
        if view.phase is JobPhase.RUNNING:
            record.shown_running(now_s)
        was, record.view, record.phase, record.absent = record.phase, view, view.phase, 0
        if view.phase is JobPhase.OVER:
            return self._over(now_s, record)
        record.doubtful = False
        record.held_s = (now_s if record.held_s is None else record.held_s) if view.held else None
        if view.phase is JobPhase.RUNNING:
            return self._announced(now_s, record, view) or self._end_known(record)
        if view.phase is JobPhase.SUSPENDED:
            record.suspended = True
            return [JobSuspended(view.job)] if was is not JobPhase.SUSPENDED else []
        return []

    def _end_known(self, record: JobRecord) -> list[JobEvent]:
        """Report a job's changed end. Schedulers replan all the time, so changes smaller than a poll are ignored. If
        the system's clock was set, all ends have changed.
        """
        unix_s, before_s = record.end_s(self.site), record.reported_end_s
        end_s = None if unix_s is None else unix_s - self.unix_ahead_s
        close = end_s is not None and before_s is not None and abs(end_s - before_s) <= self.site.poll_s
        if record.cause or record.preempted or end_s == before_s or close:
            return []
        record.reported_end_s = end_s
        return [EndKnown(record.job, unix_s)]

    def _announced(self, now_s: float, record: JobRecord, view: JobView) -> list[JobEvent]:
        """Report, once, a preemption or an early end that the scheduler announces."""
        if view.preempt_s is not None and view.preempt_s >= (view.start_s or 0.0) and not record.preempted:
            record.preempted, record.noticed_s = True, now_s
            return [JobNoticed(view.job, view.end_s)]
        if not record.cause and record.ends_early(now_s + self.unix_ahead_s, self.site):
            record.cause, record.noticed_s = ENDS, now_s
            return [JobNoticed(view.job, view.end_s, ENDS)]
        return []

    def _over(self, now_s: float, record: JobRecord) -> list[JobEvent]:
        """Handle a job that the scheduler reports as over, or has not listed."""
        if record.job in self.present:
            return []
        record.doubtful = record.joined_s is None and record.cancelled_s is None
        return [] if record.doubtful else [self._end(now_s, record)]

    def _end(self, now_s: float, record: JobRecord) -> JobEnded:
        del self.jobs[record.job]
        ending = record.ending(now_s + self.unix_ahead_s, self.site)
        self.endings[ending] += 1
        if ending is JobEnd.PREEMPTED:
            self._preempted_s.append(now_s)
        failed = record.run(now_s, self.unix_ahead_s) if record.failed(now_s, ending) else None
        return JobEnded(record.job, ending, record.detail(), failed)


def _forget(times_s: deque[float], before_s: float) -> None:
    while times_s and times_s[0] <= before_s:
        times_s.popleft()
