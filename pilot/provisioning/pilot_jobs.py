"""What is known of our jobs, from the scheduler's answers and the agents' words. Does nothing, asks nobody."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from pilot.io.site import Site
from pilot.provisioning.scaling_policy import Kept
from pilot.provisioning.scheduler import WALLTIME_WORD, Ending, JobPhase, JobView, Snapshot, what_became

STEADY_S = 60.0
"""A pilot that was in the pool for so long has worked; one that ends sooner by itself counts as a failure."""

ABSENT_POLLS = 2
"""A job that so many answers in a row do not show is over."""


@dataclass(frozen=True, slots=True)
class JobNoticed:
    """The scheduler has decided to preempt ``job``; it will be killed at ``deadline_s`` (Unix time) at the latest."""

    job: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class JobEnded:
    """``job`` is over. ``failed``: that is a failure of ours and not the scheduler's doing."""

    job: str
    ending: Ending
    detail: str
    failed: bool


@dataclass(slots=True)
class JobRecord:
    """One of our jobs. ``word`` is its agent's notice, ``since_s`` when its agent registered."""

    job: str
    submitted_s: float
    walltime_s: float
    phase: JobPhase = JobPhase.PENDING
    restart: int = 0
    since_s: float | None = None
    word: str = ""
    preempted: bool = False
    cancelled_s: float | None = None
    absent: int = 0
    view: JobView | None = None

    @property
    def leaving(self) -> bool:
        """Whether it will be over soon."""
        return bool(self.word) or self.preempted or self.cancelled_s is not None

    @property
    def wall_time(self) -> bool:
        """Whether it leaves because its wall time ends."""
        return WALLTIME_WORD in self.word

    def live_again(self, restart: int) -> None:
        """It was requeued: nothing is known of its new life yet."""
        self.restart, self.since_s, self.word, self.preempted = restart, None, "", False


@dataclass(slots=True)
class PilotJobs:
    """Our jobs that are not over, by id, how many ended in which way, and when the last one was preempted."""

    site: Site
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    endings: Counter[Ending] = field(default_factory=Counter)
    preempted_s: float = -math.inf

    def submitted(self, now_s: float, job: str, walltime_s: float) -> None:
        """We submitted ``job``."""
        self.jobs[job] = JobRecord(job, now_s, walltime_s)

    def cancelled(self, now_s: float, jobs: Iterable[str]) -> None:
        """We cancelled ``jobs``."""
        for job in jobs:
            self.jobs[job].cancelled_s = now_s

    def registered(self, now_s: float, job: str, restart: int) -> None:
        """The agent of ``job`` is in the pool."""
        record = self.jobs.get(job)
        if record is None:
            return
        if restart > record.restart:
            record.live_again(restart)
        record.phase = JobPhase.RUNNING
        record.since_s = now_s if record.since_s is None else record.since_s

    def noticed(self, job: str, word: str) -> None:
        """The agent of ``job`` leaves, because of ``word``."""
        if job in self.jobs:
            self.jobs[job].word = word

    def take(self, now_s: float, asked_s: float, snapshot: Snapshot) -> list[JobNoticed | JobEnded]:
        """Take in the scheduler's answer to a question of ``asked_s``, and tell what is new."""
        news: list[JobNoticed | JobEnded] = []
        for view in snapshot.jobs.values():
            if view.job in self.jobs or view.phase is not JobPhase.OVER:
                news += self._see(now_s, view)
        unseen = [r for r in self.jobs.values() if r.job not in snapshot.jobs and r.submitted_s < asked_s]
        for record in unseen:
            record.absent += 1
            if record.absent >= ABSENT_POLLS:
                news.append(self._end(now_s, record))
        return news

    def kept(self, spare: Collection[str]) -> list[Kept]:
        """The jobs as a decision sees them."""
        return [
            Kept(r.job, r.phase, r.submitted_s, r.walltime_s, r.leaving, r.job in spare) for r in self.jobs.values()
        ]

    def yielding(self, now_s: float) -> bool:
        """Whether a job of others takes nodes from us, or did so in the last two polls.

        Slurm tries to start a job as it is submitted, past those that wait for nodes to become free: a replacement
        could take a node that the job which preempts us needs.
        """
        taking = any(r.cancelled_s is None and (r.preempted or r.word) and not r.wall_time for r in self.jobs.values())
        return taking or now_s - self.preempted_s < 2 * self.site.poll_s

    def uncancelled(self) -> list[str]:
        """The jobs that are to be cancelled at the end, pending ones first."""
        records = [r for r in self.jobs.values() if r.cancelled_s is None]
        return [r.job for r in sorted(records, key=lambda r: r.phase is not JobPhase.PENDING)]

    def overdue(self, now_s: float) -> list[str]:
        """Jobs that outlived their cancellation by more than the site's grace."""
        limit_s = self.site.grace_s + self.site.poll_s
        return [r.job for r in self.jobs.values() if r.cancelled_s is not None and now_s - r.cancelled_s > limit_s]

    def works(self, now_s: float, after_s: float) -> bool:
        """Whether a pilot that came after ``after_s`` has been in the pool long enough to say that pilots work."""
        came_s = [r.since_s for r in self.jobs.values() if r.since_s is not None]
        return any(after_s < since_s <= now_s - STEADY_S for since_s in came_s)

    def _see(self, now_s: float, view: JobView) -> list[JobNoticed | JobEnded]:
        """A job of ours that is not in the book is of an earlier life of this coordinator, or was thought refused."""
        walltime_s = view.walltime_s or self.site.walltime_s
        record = self.jobs.setdefault(view.job, JobRecord(view.job, now_s, walltime_s))
        waits_again = view.phase is JobPhase.PENDING and record.phase is JobPhase.RUNNING
        if view.restart > record.restart or waits_again:
            self.preempted_s = now_s
            record.live_again(max(view.restart, record.restart))
        record.view, record.phase, record.absent = view, view.phase, 0
        if view.phase is JobPhase.OVER:
            return [self._end(now_s, record)]
        taken = (
            view.phase is JobPhase.RUNNING and view.preempt_s is not None and view.preempt_s >= (view.start_s or 0.0)
        )
        if not taken or record.preempted:
            return []
        record.preempted = True
        return [JobNoticed(view.job, view.end_s or now_s + self.site.grace_s)]

    def _end(self, now_s: float, record: JobRecord) -> JobEnded:
        del self.jobs[record.job]
        lead_s = self.site.notice_lead_s if self.site.notice_signal else 0.0
        ending = what_became(record.view, record.word, cancelled=record.cancelled_s is not None, lead_s=lead_s)
        self.endings[ending] += 1
        if ending is Ending.PREEMPTED:
            self.preempted_s = now_s
        detail = record.view.detail if record.view else "the scheduler no longer knows it"
        return JobEnded(record.job, ending, detail, _is_failure(now_s, record, ending))


def _is_failure(now_s: float, record: JobRecord, ending: Ending) -> bool:
    """Whether pilots seem not to work: it ended by itself without ever having come, or failed soon after it came."""
    if record.since_s is None:
        return ending in (Ending.FAILED, Ending.GONE, Ending.COMPLETED)
    return ending is Ending.FAILED and now_s - record.since_s < STEADY_S
