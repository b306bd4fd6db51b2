"""The facts about one of our jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pilot.provisioning.nodes_aside import Run
from pilot.provisioning.retry import Retry
from pilot.provisioning.scheduler import JobEnd, JobPhase, JobView
from pilot.site.site import Site

YIELD_POLLS = 2
"""A job that preempts ours has the nodes at most this many polls after ours ended."""

SOON_POLLS = 2
"""The end of a wall time is announced this many polls before the grace period begins, because an answer may be late.
A queued job is counted on from this many polls before the time that it waits for."""

STARTING_S = 600.0
"""How long a job may run before its agent joins (prologue, cold file system), or after its lease ended."""

STEADY_S = 60.0
"""A pilot that was in the pool for this long works; one that ends by itself sooner counts as a failure."""

HELD_S = 60.0
"""A queued job that was held for this long is no longer counted on."""

CLOSE_S = 60.0
"""Schedulers check wall times about once a minute."""

WALLTIME_CAUSE = "wall time"
"""The cause in an agent's notice if it leaves because its wall time ends; any other cause means a preemption."""


@dataclass(slots=True)
class JobRecord:
    """One of our jobs, until it is known to be over. Times are on the coordinator's clock, except in ``view``."""

    job: str
    submitted_s: float
    walltime_s: float  #: as requested; the scheduler may grant less, see ``view``
    phase: JobPhase = JobPhase.PENDING
    without: frozenset[str] = frozenset()  #: the nodes on which it does not run
    restart: int = 0
    joined_s: float | None = None  #: when its agent registered; None: it never did
    #: when its agent was last connected, or when the job was first shown as running; None before that
    alive_s: float | None = None
    cause: str = ""  #: of its agent's notice
    noticed_s: float = -math.inf  #: when its agent gave notice, or the scheduler announced a preemption
    left: bool = False  #: its agent has left, as it had announced or was told
    preempted: bool = False  #: the scheduler preempts it
    lost: bool = False  #: whether its agent had been silent for longer than its lease when we asked to cancel it
    mute: bool = False  #: whether its agent had not joined in time when we asked to cancel it
    cancelled_s: float | None = None  #: when the scheduler agreed to cancel it
    asked_s: float | None = None  #: when we first asked for that
    absent: int = 0  #: how many answers in a row did not list it
    #: the scheduler reports it as over, or no longer knows it, but nobody else has confirmed that
    doubtful: bool = False
    suspended: bool = False  #: whether it has been suspended since its last restart
    held_s: float | None = None  #: since when the scheduler has shown it as held; None: it is not
    view: JobView | None = None
    reported_end_s: float | None = None  #: the end that was reported to the pool
    cancelling: Retry = field(default_factory=Retry)
    killing: Retry = field(default_factory=Retry)

    def leaving(self, now_s: float, site: Site) -> bool:
        """Whether the job no longer counts.

        An agent's notice counts only for the grace and a while: one of several agents in a job may leave alone. The end
        of the wall time applies to all.
        """
        gone = self.cancelled_s is not None or self.doubtful or self.phase is JobPhase.SUSPENDED
        ends = WALLTIME_CAUSE in self.cause or (bool(self.cause) and self._is_fresh(now_s, site))
        return gone or ends or self.preempted or self.dead(now_s, site)

    def held(self, now_s: float, unix_s: float, site: Site) -> bool:
        """Whether the job is queued, but will not start soon, for a reason of its own."""
        if self.held_s is None or self.view is None:
            return False
        if self.view.start_s is None:
            return now_s - self.held_s >= HELD_S
        return self.view.start_s - unix_s >= SOON_POLLS * site.poll_s

    def yields(self, now_s: float, site: Site) -> bool:
        """Whether another user's job is taking the job's nodes, and does not seem to have them yet."""
        announced = self.preempted or (bool(self.cause) and WALLTIME_CAUSE not in self.cause)
        return announced and self.cancelled_s is None and self._is_fresh(now_s, site)

    def _is_fresh(self, now_s: float, site: Site) -> bool:
        return now_s < self.noticed_s + site.grace_s + YIELD_POLLS * site.poll_s

    def dead(self, now_s: float, site: Site) -> bool:
        """Whether the scheduler shows the job as running while its agent has been silent for longer than its lease."""
        if self.phase is not JobPhase.RUNNING or self.alive_s is None:
            return False
        lease_s = site.orphan_s + site.heartbeat_s
        return now_s - self.alive_s > (lease_s if self.joined_s is not None else max(lease_s, STARTING_S))

    def shown_running(self, now_s: float) -> None:
        """Start the time for the agent to join with the first view of the running job, and to come back with the first
        one after a suspension, during which no agent can answer."""
        if self.alive_s is None or self.phase is JobPhase.SUSPENDED:
            self.alive_s = now_s

    def ends_early(self, unix_s: float, site: Site) -> bool:
        """Whether the job's end is near, at a wall time shorter than requested, of which its agent does not know."""
        view = self.view
        if view is None or view.end_s is None or view.walltime_s is None or view.walltime_s >= self.walltime_s:
            return False
        return view.end_s - unix_s <= site.grace_s + SOON_POLLS * site.poll_s

    def end_s(self, site: Site) -> float | None:
        """When the job's nodes will have left (Unix time), as far as the scheduler knows: its agent begins to leave
        before the wall time ends, or another user's job is planned there, but not within the time that the site
        guarantees.
        """
        view = self.view
        if view is None or self.phase is not JobPhase.RUNNING:
            return None
        ends_s = [] if view.end_s is None else [view.end_s - site.grace_s]
        if view.planned_s is not None:
            ends_s.append(max(view.planned_s, (view.start_s or 0.0) + site.guaranteed_s))
        return min(ends_s, default=None)

    def requeued(self, restart: int) -> None:
        """Forget the job's earlier run: nothing is known about the new one yet."""
        self.restart, self.joined_s, self.alive_s, self.cause, self.preempted = restart, None, None, "", False
        self.noticed_s, self.suspended, self.lost, self.reported_end_s = -math.inf, False, False, None
        self.left = self.mute = False

    def run(self, at_s: float, unix_ahead_s: float, reason: str = "") -> Run:
        """What is known about its run, in which it joined, or failed, at ``at_s``."""
        view = self.view or JobView(self.job, self.phase)
        began_s = at_s if view.start_s is None else view.start_s - unix_ahead_s
        return Run(view.nodes, self.submitted_s, min(at_s, began_s), at_s, reason)

    # --- once it is over

    def ending(self, unix_s: float, site: Site) -> JobEnd:
        """How the job ended, given that it is over at ``unix_s``.

        The scheduler knows best why it took a node. But a job whose agent left within its grace ends as *completed*;
        then the agent's report counts, as it does for a job that the scheduler no longer knows. A dead node is noticed
        either by the scheduler, or by us when its agent's lease is over: then we cancel the job, and the scheduler
        later reports only that.
        """
        shown = self.view.ending if self.view else None
        if shown in (JobEnd.PREEMPTED, JobEnd.WALLTIME, JobEnd.NODE_FAILED):
            return shown
        if self.view and self.view.preempt_s is not None:
            return JobEnd.PREEMPTED
        if self.lost:
            return JobEnd.NODE_FAILED
        if self.cancelled_s is not None or shown is JobEnd.CANCELLED:
            return JobEnd.CANCELLED
        if self.cause:
            # The same signal announces both; it means the wall time only near its end.
            at_end = WALLTIME_CAUSE in self.cause or self._used_walltime(unix_s, site)
            return JobEnd.WALLTIME if at_end else JobEnd.PREEMPTED
        if self.suspended and shown in (JobEnd.COMPLETED, None, JobEnd.GONE):
            return JobEnd.PREEMPTED  # its agent had been replaced while it was stopped, and left
        return shown or JobEnd.GONE

    def _used_walltime(self, unix_s: float, site: Site) -> bool:
        """Whether the wall time was used up when the job was signalled. The last view may be from before its end."""
        view, lead_s = self.view, site.notice_lead_s if site.notice_signal else 0.0
        if view is None or view.start_s is None or view.walltime_s is None:
            return False
        end_s = unix_s if view.end_s is None else min(unix_s, view.end_s)
        return end_s - view.start_s >= view.walltime_s - lead_s - CLOSE_S

    def detail(self) -> str:
        """Why the job ended, in the scheduler's words."""
        detail = self.view.detail if self.view else "the scheduler no longer knows it"
        if self.mute:
            return f"its agent did not join within {STARTING_S:g} s; {detail}"
        return f"its agent had been silent for longer than its lease; {detail}" if self.lost else detail

    def failed(self, now_s: float, ending: JobEnd) -> bool:
        """Whether pilots seem not to work: the job never joined and ended by itself, or did not join in time; or it
        failed soon after it joined."""
        if self.joined_s is None:
            return self.mute or ending in (JobEnd.FAILED, JobEnd.GONE, JobEnd.COMPLETED)
        return ending is JobEnd.FAILED and now_s - self.joined_s < STEADY_S
