"""The profile of one trainer: on which node counts its rate is measured, one after the other, while it trains.

MalleTrain's Job Profiling Advisor (§3.3): it grows once, to the largest of the counts, and goes down from there,
because shrinking costs less than growing. A count's rate is known when the mean of its last reports, :data:`REPORTS` or
more, has a standard error of :data:`KNOWN` or less. No count is waited for longer than :data:`REACH_S` (until the
trainer trains on it) and :data:`MEASURE_S` (from then on); what was measured by then counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from pilot.core.ids import TrainerId
from pilot.core.trainer.spec import Profiling, TrainerSpec

REPORTS = 5
"""The leader reports once a second, each time the median rate of its last 20 steps."""

KNOWN = 0.02
"""Relative. The rate of a running trainer varies by this much from one minute to the next."""

MEASURE_S = 120.0
REACH_S = 300.0

UNASKED_S = 600.0
"""If no plan is made for this long after a measurement may pay again, one is asked for."""

KEPT_RATES = REPORTS << 5
"""A rate that scatters is determined by its last reports, this many at most."""


@dataclass(slots=True)
class Profile:
    """The state of a profile."""

    wanted: bool = False  #: it may be made, or is under way
    lasting: bool = False  #: it may always be made once more (``auto``)
    left: list[int] = field(default_factory=list)  #: the counts still to be measured, the largest (the current) first
    known: dict[int, None] = field(default_factory=dict)  #: the counts whose rate is known
    by_s: float = math.inf  #: when the current count is given up; without one, when it is considered again
    began_s: float = 0.0  #: when the current count was chosen
    node_s: float = 0.0  #: node-seconds of the counts before
    seen: int = 0  #: how many measured rates there were when it was last considered
    there: bool = False  #: the trainer has come to the current count
    size: int = 0  #: of the newest group
    rates: list[float] = field(default_factory=list)  #: the reports of the newest group
    lender: TrainerId | None = None  #: gives it nodes until the first count is measured
    lender_nodes: int = 0  #: that the lender keeps

    @classmethod
    def of(cls, spec: TrainerSpec) -> Profile:
        """The profile of a newly submitted trainer: none if it is not wanted, or if its curve is known."""
        known = bool(spec.curve or spec.known) and not spec.reprofile
        wanted = not known and spec.profile is not Profiling.NEVER and spec.max_nodes > spec.min_nodes
        return cls(wanted=wanted, lasting=spec.profile is Profiling.AUTO)

    @property
    def pin(self) -> int | None:
        """The node count that is being measured; None: no profile is running."""
        return self.left[0] if self.wanted and self.left else None

    def sentence(self) -> str:
        """The state of the profile in words; "" if none is running."""
        if self.pin is None:
            return ""
        then = f", then at {', '.join(map(str, self.left[1:]))}" if self.left[1:] else ""
        return f"profiling at {self.pin} node{'' if self.pin == 1 else 's'}{then}"

    @property
    def due_s(self) -> float:
        """When something is due though nothing else happens: in a pool that changes, another plan considers it."""
        return self.by_s if self.left else self.by_s + UNASKED_S

    def considers(self, now_s: float, rates: int) -> bool:
        """Whether it is to be considered now: nothing is being measured, and its time has come, or there are other
        ``rates`` than before."""
        return self.wanted and not self.left and (self.by_s <= now_s or math.isinf(self.by_s) or self.seen != rates)

    def rest(self, until_s: float, rates: int) -> None:
        """Nothing is worth measuring before ``until_s``, unless there are other ``rates``."""
        self.by_s, self.seen = until_s, rates

    def borrow(self, lender: TrainerId, nodes: int) -> None:
        """Borrow from ``lender``, which keeps ``nodes`` nodes."""
        self.lender, self.lender_nodes = lender, nodes

    def came_to(self, now_s: float, nodes: int) -> None:
        """Record that it trains on ``nodes`` nodes from now on."""
        self.size, self.rates = nodes, []
        if nodes == self.pin and not self.there:
            self.there, self.by_s = True, now_s + MEASURE_S

    def report(self, now_s: float, nodes: int, samples_per_s: float) -> bool:
        """Add a measured rate; returns whether the trainer moves on to the next count, or is done."""
        if nodes != self.size:
            self.came_to(now_s, nodes)
        self.rates = [*self.rates[1 - KEPT_RATES :], samples_per_s]
        if not _is_known(self.rates):
            return False
        self.known[nodes] = None
        if nodes != self.pin:
            return False
        self.next(now_s)
        return True

    def next(self, now_s: float) -> None:
        """Move on to the next count: this one is known, or its time is over."""
        self.begin(now_s, self.left[1:])

    def shrink(self, now_s: float, most: int) -> None:
        """At most ``most`` nodes are left for it: it replaces all larger counts, unless these are chosen one by one."""
        fits = [count for count in self.left if count <= most]
        if fits == self.left:
            return
        if not (self.lasting or most in (*fits, *self.known)):
            fits.insert(0, most)
        self.begin(now_s, fits)

    def begin(self, now_s: float, counts: Sequence[int]) -> None:
        """Measure ``counts`` from now on, the largest first. What came before ended in time, if the pool was down."""
        self.node_s += (self.pin or 0) * (min(now_s, self.by_s) - self.began_s)
        self.left = list(counts)
        self.there, self.rates, self.lender = False, [], None
        self.wanted = self.lasting or bool(self.left)
        self.began_s, self.by_s = now_s, now_s + REACH_S if self.left else math.inf
        if self.size == self.pin:
            self.came_to(now_s, self.size)


def _is_known(rates: Sequence[float]) -> bool:
    """Whether the last ``rates`` determine the rate: the last 5 if it has just settled; 10, 20, … if they scatter."""
    ends = (rates[-(REPORTS << i) :] for i in range((len(rates) // REPORTS).bit_length()))
    return any(stdev(end) <= KNOWN * fmean(end) * math.sqrt(len(end)) for end in ends)


def allowed(spec: TrainerSpec, most: int) -> tuple[int, ...]:
    """The counts up to ``most`` that a trainer may have, increasing."""
    return tuple(n for n in range(spec.min_nodes, min(most, spec.max_nodes) + 1) if spec.fitting(n) == n)
