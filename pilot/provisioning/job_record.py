"""What is known about one of our jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pilot.provisioning.retry import Retry
from pilot.provisioning.scheduler import WALLTIME_WORD, JobPhase, JobView
from pilot.site.site import Site

YIELD_POLLS = 2
"""A job that preempts ours has the nodes at most this many polls after ours ended."""

SOON_POLLS = 2
"""The end of a wall time is announced this many polls before the grace period begins, because an answer may be late."""

STARTING_S = 600.0
"""How long a job may run before its agent joins (prologue, cold file system), or after its lease ended."""


@dataclass(slots=True)
class JobRecord:
    """One of our jobs, until it is known to be over."""

    job: str
    submitted_s: float
    walltime_s: float  #: as requested; the scheduler may grant less, see ``view``
    phase: JobPhase = JobPhase.PENDING
    restart: int = 0
    since_s: float | None = None  #: when its agent registered; None: it never did
    #: when its agent was last seen connected, or when it was seen to have started; None before that
    heard_s: float | None = None
    word: str = ""  #: the cause of its agent's notice
    noticed_s: float = -math.inf  #: when its agent gave notice, or the scheduler announced a preemption
    preempted: bool = False  #: the scheduler preempts it
    lost: bool = False  #: whether its agent had been silent for longer than its lease when we asked to cancel it
    cancelled_s: float | None = None  #: when the scheduler agreed to cancel it
    asked_s: float | None = None  #: when we first asked for that
    absent: int = 0  #: how many answers in a row did not list it
    #: the scheduler says that it is over, or no longer knows it, but nobody else has confirmed that
    doubtful: bool = False
    suspended: bool = False  #: whether it has been suspended since its last restart
    view: JobView | None = None
    told_end_s: float | None = None  #: the end that was reported to the pool, on the clock of ``since_s``
    cancelling: Retry = field(default_factory=Retry)
    killing: Retry = field(default_factory=Retry)

    def leaving(self, now_s: float, site: Site) -> bool:
        """Whether it no longer counts.

        An agent's notice counts only for the grace and a while: one of several agents in a job may leave alone. The end
        of the wall time applies to all.
        """
        gone = self.cancelled_s is not None or self.doubtful or self.phase is JobPhase.SUSPENDED
        ends = WALLTIME_WORD in self.word or (bool(self.word) and self._is_fresh(now_s, site))
        return gone or ends or self.preempted or self.dead(now_s, site)

    def taken(self, now_s: float, site: Site) -> bool:
        """Whether another user's job is taking its nodes, and does not seem to have them yet."""
        announced = self.preempted or (bool(self.word) and WALLTIME_WORD not in self.word)
        return announced and self.cancelled_s is None and self._is_fresh(now_s, site)

    def _is_fresh(self, now_s: float, site: Site) -> bool:
        return now_s < self.noticed_s + site.grace_s + YIELD_POLLS * site.poll_s

    def dead(self, now_s: float, site: Site) -> bool:
        """Whether it is running according to the scheduler, while its agent has been silent for longer than its
        lease."""
        if self.phase is not JobPhase.RUNNING or self.heard_s is None:
            return False
        lease_s = site.orphan_s + site.heartbeat_s
        return now_s - self.heard_s > (lease_s if self.since_s is not None else max(lease_s, STARTING_S))

    def runs(self, now_s: float) -> None:
        """The scheduler shows it running. The time for its agent to join (or come back) starts with the first such
        view, and with the first one after a suspension, during which it could not be heard."""
        if self.heard_s is None or self.phase is JobPhase.SUSPENDED:
            self.heard_s = now_s

    def ends_early(self, unix_s: float, site: Site) -> bool:
        """Whether the end of a wall time shorter than requested is near; the agent does not know of that end."""
        view = self.view
        if view is None or view.end_s is None or view.walltime_s is None or view.walltime_s >= self.walltime_s:
            return False
        return view.end_s - unix_s <= site.grace_s + SOON_POLLS * site.poll_s

    def end_s(self, site: Site) -> float | None:
        """When its nodes will have left (Unix time), as far as the scheduler knows: its agent begins to leave before
        the wall time ends, or another user's job is planned there, but not within the time that the site guarantees.
        """
        view = self.view
        if view is None or self.phase is not JobPhase.RUNNING:
            return None
        ends_s = [] if view.end_s is None else [view.end_s - site.grace_s]
        if view.planned_s is not None:
            ends_s.append(max(view.planned_s, (view.start_s or 0.0) + site.guaranteed_s))
        return min(ends_s, default=None)

    def live_again(self, restart: int) -> None:
        """It was requeued: nothing is known about its new run yet."""
        self.restart, self.since_s, self.heard_s, self.word, self.preempted = restart, None, None, "", False
        self.noticed_s, self.suspended, self.lost, self.told_end_s = -math.inf, False, False, None
