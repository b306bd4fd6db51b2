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

APART = 4
"""``auto`` profiles trainers whose range is at least this factor: in a narrower one plans reach each count soon."""


@dataclass(slots=True)
class Profile:
    """The state of a profile."""

    wanted: bool = False  #: it is to be made, and has not begun or is under way
    left: list[int] = field(default_factory=list)  #: the counts still to be measured, the largest (the current) first
    known: dict[int, None] = field(default_factory=dict)  #: the counts whose rate is known
    by_s: float = math.inf  #: when the current count is given up
    there: bool = False  #: the trainer has come to the current count
    size: int = 0  #: of the newest group
    rates: list[float] = field(default_factory=list)  #: the reports of the newest group
    lender: TrainerId | None = None  #: gives it nodes until the first count is measured
    lender_nodes: int = 0  #: that the lender keeps

    @classmethod
    def of(cls, spec: TrainerSpec) -> Profile:
        """The profile of a newly submitted trainer: none if it is not wanted, or if its curve is known."""
        known = bool(spec.curve or spec.known) and not spec.reprofile
        return cls(wanted=not known and spec.max_nodes >= least_top(spec))

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

    def begin(self, now_s: float, counts: Sequence[int]) -> None:
        """Begin to measure ``counts``, the largest first, except those whose rate is known."""
        self.left = [count for count in counts if count not in self.known]
        self.wanted = bool(self.left)
        self._turn(now_s)

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
        self.rates.append(samples_per_s)
        if not _is_known(self.rates):
            return False
        self.known[nodes] = None
        if nodes != self.pin:
            return False
        self.next(now_s)
        return True

    def next(self, now_s: float) -> None:
        """Move on to the next count: this one is known, or its time is over."""
        del self.left[0]
        self.wanted = bool(self.left)
        self._turn(now_s)

    def shrink(self, now_s: float, most: int, least: float) -> None:
        """At most ``most`` nodes are left for it: that count replaces all larger ones, if it is at least ``least``. If
        no count is left, it waits for its turn again, unless something was measured."""
        fits = [count for count in self.left if count <= most]
        if fits == self.left:
            return
        if most >= least and most not in (*fits, *self.known):
            fits.insert(0, most)
        self.left = fits
        self.wanted = bool(fits) or not self.known
        self._turn(now_s)

    def _turn(self, now_s: float) -> None:
        self.there, self.rates, self.lender = False, [], None
        self.by_s = now_s + REACH_S if self.left else math.inf
        if self.size == self.pin:
            self.came_to(now_s, self.size)


def _is_known(rates: Sequence[float]) -> bool:
    """Whether the last ``rates`` determine the rate: the last 5 if it has just settled; 10, 20, … if they scatter."""
    ends = (rates[-(REPORTS << i) :] for i in range((len(rates) // REPORTS).bit_length()))
    return any(stdev(end) <= KNOWN * fmean(end) * math.sqrt(len(end)) for end in ends)


def least_top(spec: TrainerSpec) -> float:
    """How large the top count must be for a profile to be worth its scale-up; below it, plans reach every count."""
    match spec.profile:
        case Profiling.NEVER:
            return math.inf
        case Profiling.AUTO:
            return APART * spec.min_nodes
        case Profiling.INVERSE:
            return spec.min_nodes + 1


def allowed(spec: TrainerSpec, most: int) -> tuple[int, ...]:
    """The counts up to ``most`` that a trainer may have, increasing."""
    return tuple(n for n in range(spec.min_nodes, min(most, spec.max_nodes) + 1) if spec.fitting(n) == n)
