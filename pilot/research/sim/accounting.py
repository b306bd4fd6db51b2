"""A trainer's progress, the cost of its rescales and preemptions, and how long it waited and trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from operator import gt, mul, sub

from pilot.core.curves.curve import Curve
from pilot.core.curves.mixed import mixed_rate
from pilot.core.ids import TrainerId
from pilot.research.traces.workload import TrainerEnd, WorkloadRow


class Accounting(StrEnum):
    """How a rescale is paid for."""

    PAPER = "paper"
    """The samples of R seconds at the rate before it, at once (FreeTrain eq. 16): a start from 0 nodes is free."""
    PHYSICAL = "physical"
    """A pause of R seconds, at the new rate; a start from 0 nodes pauses, too."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Samples not processed because nodes left (``preemption``) and because of the plan (``rescale``)."""

    preemption: float = 0.0
    rescale: float = 0.0


FREE = Cost()

Counts = tuple[int, ...]
"""Nodes of each of the trace's types; of one type if they are all alike."""


@dataclass(slots=True)
class Account:
    """One trainer's progress: ``done`` samples at ``since_s``, then ``rate`` a second after ``paused_until_s``.

    ``speeds``: how fast it computes on a node of each type, relative to its reference type, for which its curve holds.
    ``later``: when another rate takes over, if more nodes take effect with a delay. ``changes``: its node counts, each
    with the time from which it holds. ``interruptions``: how often it was stopped while it trained. ``ended_s``: when
    it ended in any way.
    """

    submission: WorkloadRow
    admitted_s: float
    speeds: tuple[float, ...] = (1.0,)
    curve: Curve = field(init=False)
    done: float = 0.0
    held: Counts = ()
    rate: float = 0.0
    since_s: float = 0.0
    paused_until_s: float = -math.inf
    later: tuple[float, float] | None = None
    ended_s: float | None = None
    interruptions: int = 0
    changes: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.curve = self.submission.spec.curve or Curve.proportional()
        self.since_s = self.admitted_s
        self.held = (0,) * len(self.speeds)

    @property
    def nodes(self) -> int:
        """How many it has."""
        return sum(self.held)

    @property
    def trainer(self) -> TrainerId:
        """Its id."""
        return self.submission.spec.trainer

    @property
    def completed(self) -> bool:
        """Whether all of its work was done."""
        return self.ended_s is not None and self.submission.ending is TrainerEnd.FINISHES

    def advance(self, now_s: float) -> float:
        """Integrate up to ``now_s``; the samples gained, never more than are left."""
        gained = 0.0
        if self.later is not None and self.later[0] <= now_s:
            at_s, rate = self.later
            gained = self._work_until(at_s)
            self.rate, self.later = rate, None
        return gained + self._work_until(now_s)

    def _work_until(self, now_s: float) -> float:
        working_s = now_s - max(self.since_s, self.paused_until_s)
        gained = min(self.rate * max(0.0, working_s), self.submission.samples - self.done)
        self.done += gained
        self.since_s = now_s
        return gained

    def ends_s(self) -> float:
        """When it ends if nothing changes; infinite without nodes, and if it hangs."""
        if self.submission.ending is TrainerEnd.HANGS:
            return math.inf
        left, from_s = self.submission.samples - self.done, max(self.since_s, self.paused_until_s)
        if self.later is None:
            return from_s + left / self.rate if self.rate > 0 else math.inf
        at_s, rate = self.later
        before = self.rate * max(0.0, at_s - from_s)
        return from_s + left / self.rate if before >= left and self.rate > 0 else at_s + (left - before) / rate

    def is_done(self) -> bool:
        return self.done >= self.submission.samples and self.submission.ending is not TrainerEnd.HANGS

    def rescale(self, accounting: Accounting, lost: Counts, held: Counts, delay_s: float = 0.0) -> Cost:
        """From now on it has ``held``; ``lost`` of those before were preempted, the plan did the rest.

        What makes it faster does so ``delay_s`` later; until then it continues as before (Huawei §5.5).
        """
        if not any(lost) and held == self.held:
            return FREE
        left = tuple(map(sub, self.held, lost))
        pay = self._charge if accounting is Accounting.PAPER else self._pause
        cost = pay(any(lost), left, held)
        self.interruptions += self.rate > 0
        if (nodes := sum(held)) != self.nodes:
            self.changes.append((self.since_s, nodes))
        before, after = min(self.rate, self.rate_on(left)), self.rate_on(held)
        self.later = (self.since_s + delay_s, after) if delay_s and after > before else None
        self.held, self.rate = held, after if self.later is None else before
        return cost

    def rate_on(self, held: Counts) -> float:
        """Samples per second on these nodes (:mod:`pilot.core.curves.mixed`)."""
        if sum(held) < self.submission.spec.min_nodes:
            return 0.0
        return group_rate(self.curve, held, self.speeds, self.submission.equal_shares)

    def _charge(self, lost: bool, left: Counts, held: Counts) -> Cost:
        spec = self.submission.spec
        preemption = spec.rescale_down_s * self.rate if lost else 0.0
        seconds = spec.rescale_up_s if _grows(left, held) else spec.rescale_down_s if left != held else 0.0
        cost = Cost(preemption, seconds * self.rate_on(left))
        self.done -= cost.preemption + cost.rescale
        return cost

    def _pause(self, lost: bool, left: Counts, held: Counts) -> Cost:
        spec, grows = self.submission.spec, _grows(left, held)
        seconds = spec.rescale_up_s if grows else spec.rescale_down_s
        self.paused_until_s = max(self.paused_until_s, self.since_s + seconds)
        samples = seconds * self.rate_on(held)
        return Cost(rescale=samples) if grows or not lost else Cost(preemption=samples)


def group_rate(curve: Curve, held: Counts, speeds: Sequence[float], equal_shares: bool = False) -> float:
    """Samples per second of a trainer on these nodes, by its curve on nodes of its reference type. With equal shares
    the slowest node decides."""
    nodes = sum(held)
    if equal_shares:
        effective = nodes * min((speed for n, speed in zip(held, speeds, strict=True) if n), default=1.0)
    else:
        effective = sum(map(mul, held, speeds))
    return curve.at(nodes) if effective == nodes else mixed_rate(curve, nodes, effective)


def _grows(left: Counts, held: Counts) -> bool:
    """Whether nodes of any type are new: they must be given the state."""
    return any(map(gt, held, left))


@dataclass(frozen=True, slots=True)
class TrainerTimes:
    """One trainer that has ended; all in seconds."""

    trainer: TrainerId  #: its id
    submit_s: float  #: on the trace's clock
    ended_s: float  #: on the trace's clock
    waiting_s: float  #: without nodes, or with fewer than its minimum
    training_s: float  #: the rest
    ending: TrainerEnd  #: how it ended

    @property
    def total_s(self) -> float:
        """From submission to end."""
        return self.ended_s - self.submit_s


def times_of(accounts: Iterable[Account]) -> list[TrainerTimes]:
    """The times of all trainers that have ended, in the order in which they were admitted."""
    return [_times(account, account.ended_s) for account in accounts if account.ended_s is not None]


def _times(account: Account, ended_s: float) -> TrainerTimes:
    row, spans = account.submission, pairwise([*account.changes, (ended_s, 0)])
    training_s = sum(until_s - since_s for (since_s, nodes), (until_s, _) in spans if nodes >= row.spec.min_nodes)
    waiting_s = max(0.0, ended_s - row.submit_s - training_s)
    return TrainerTimes(account.trainer, row.submit_s, ended_s, waiting_s, training_s, row.ending)


def done_when(other: Sequence[TrainerTimes], count: int, these: Sequence[TrainerTimes]) -> int | None:
    """How many of ``these`` were completed when ``other`` had completed ``count`` (Huawei Fig 11); None: it
    never did.
    """
    ends = sorted(one.ended_s for one in other if one.ending is TrainerEnd.FINISHES)
    if len(ends) < count:
        return None
    return sum(one.ended_s <= ends[count - 1] for one in these if one.ending is TrainerEnd.FINISHES)
