"""Measurements of a trainer: its scaling curve, rescale costs (MalleTrain's Job Monitor) and checkpoints, and how often
it loses all of its nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import geometric_mean, median

from pilot.core.curves.curve import Curve, is_rate
from pilot.core.curves.curve_model import ON_SUMMIT, Estimate, MeasuredRate, Priors, curve_of, estimates, priors_of
from pilot.core.curves.points import SCALE, TWICE, drifted, for_another, joined, settled
from pilot.core.trainer.spec import TrainerSpec

KEPT_COSTS = 5
"""A trainer's rescale cost is the median, the time of a checkpoint the maximum, of this many."""

KEPT_OF_POOL = 20
"""The cost of a rescale in a pool is the median of this many, of all its trainers."""

NOISE = 0.1
"""Relative standard deviation of a rate measured over one second; over t seconds it is this over sqrt(t)."""

REPORTS_SD = 0.03
"""Relative standard deviation of reports that goes with NOISE: each shares most of its steps with the one before."""

SCATTER_REPORTS = 30
"""The scatter of reports is averaged over about this many."""

VISIT = 0.02
"""The relative standard deviation between visits to a count (other nodes, other load), until more is seen; it counts as
one (:data:`VISITS_SEEN`)."""

VISITS_SEEN = 1
VISITS_KEPT = 20

SETTLED = 0.03
"""A second visit counts as one once its noise is this small."""

LONGEST_S = 30.0
"""Longer times between two reports count only as this much, because the trainer may have stood still."""

FIRST_S = 1.0
"""The time that the first report of a rate counts for."""

LEAST_MOVE = 0.05
"""A curve that has moved by less than this, relative, counts as unchanged."""


@dataclass(frozen=True, slots=True)
class Rate:
    """``per_s`` samples per second in the last visit to a count, last seen at ``seen_s``: a filtered random walk
    (Kalman's filter, of logarithms).

    ``variance``: of the noise in it; ``before_per_s``, ``before_variance``: what was known as the visit began (0: it is
    the first); ``earlier``: how many visits before it were long enough
    """

    per_s: float
    variance: float
    seen_s: float
    before_per_s: float = 0.0
    before_variance: float = 0.0
    earlier: int = 0

    @property
    def visits(self) -> int:
        """How many visits were long enough, :data:`TWICE` at most."""
        return min(self.earlier + (self.variance <= SETTLED**2), TWICE)

    def and_then(self, now_s: float, per_s: float, seconds: float) -> Rate:
        """Combined with a later measurement over ``seconds``."""
        drift = drifted(0.0, now_s - self.seen_s) ** 2
        gain = 1 / (1 + NOISE**2 / seconds / (self.variance + drift))
        return replace(
            self,
            per_s=self.per_s * (per_s / self.per_s) ** gain,
            variance=(1 - gain) * (self.variance + drift),
            seen_s=now_s,
            before_variance=self.before_variance + drift,
        )


@dataclass(slots=True)
class Scatter:
    """What was seen of a trainer: how much more its ``reports`` vary than assumed (a factor of variances), and the
    variance between ``visits``, from that many (``seen``)."""

    reports: float = 1.0
    visits: float = VISIT**2
    seen: int = VISITS_SEEN

    def note_report(self, rate: Rate, per_s: float) -> None:
        """A report of a visit that has the ``rate`` so far."""
        off = math.log(per_s / rate.per_s) ** 2 / (REPORTS_SD**2 + rate.variance)
        self.reports = max(1.0, self.reports + (min(off, SCATTER_REPORTS) - self.reports) / SCATTER_REPORTS)

    def note_visit(self, rate: Rate) -> None:
        """A visit is over."""
        if rate.before_per_s and rate.variance <= SETTLED**2:
            self.visits, self.seen = self._with_visit(rate), min(self.seen + 1, VISITS_KEPT)

    def point(self, nodes: int, rate: Rate, now_s: float) -> MeasuredRate:
        """The rate that another visit would find: the mean of the last one and those before, or if they differ by more
        than their errors the last one."""
        variance, per_s, visits = self._of_visit(rate), rate.per_s, self.visits
        if rate.before_per_s:
            apart = math.log(rate.per_s / rate.before_per_s)
            share = 1 - variance / (rate.before_variance + apart**2 + variance)
            per_s, variance = rate.before_per_s * math.exp(share * apart), share * variance
            visits = self._with_visit(rate) if rate.variance <= SETTLED**2 else visits
        error = drifted(math.sqrt(variance + visits), now_s - rate.seen_s)
        return MeasuredRate(nodes, per_s, error, max(1, rate.visits))

    def _of_visit(self, rate: Rate) -> float:
        return self.reports * rate.variance + self.visits

    def _with_visit(self, rate: Rate) -> float:
        """The variance between visits, if this one counts, too."""
        off = math.log(rate.per_s / rate.before_per_s) ** 2 / (rate.before_variance + self._of_visit(rate))
        return max(VISIT**2, self.visits * (1 + (off - 1) / (self.seen + 1)))


def share_scatter(of: Sequence[Scatter]) -> None:
    """A trainer that came back to no count yet is expected to vary between visits as the others do (their geometric
    mean, with :data:`VISIT` counted once)."""
    weighted = [(one.seen - VISITS_SEEN, math.log(one.visits)) for one in of]
    total = 1 + sum(seen for seen, _ in weighted)
    usual = math.exp((math.log(VISIT**2) + sum(seen * ln for seen, ln in weighted)) / total)
    for one in of:
        if one.seen == VISITS_SEEN:
            one.visits = usual


@dataclass(slots=True)
class RescaleCosts:
    """The last ``limit`` measured costs of rescales up and down, in seconds."""

    limit: int
    up_s: list[float] = field(default_factory=list)
    down_s: list[float] = field(default_factory=list)

    def note(self, *, up: bool, seconds: float) -> None:
        """Add the cost of a rescale."""
        costs = self.up_s if up else self.down_s
        costs.append(seconds)
        del costs[: -self.limit]

    def median_s(self, *, up: bool) -> float | None:
        """The median cost in seconds; None: nothing measured."""
        costs = self.up_s if up else self.down_s
        return median(costs) if costs else None


@dataclass(slots=True)
class Measured:
    """A trainer's scaling curve and costs: as given, and (unless ``fixed_curve``) as measured since.

    Plans use the curve of the last plan, ``planned``, until a measurement differs from it by more than its error
    (``moved``): noise causes no plan, and no problem differs because of it.
    """

    _spec: TrainerSpec
    wipeouts: int = 0
    _rates: dict[int, Rate] = field(default_factory=dict)
    _visit: tuple[int, int] = (0, 0)
    _rated_s: float = 0.0
    _now_s: float = 0.0
    _scatter: Scatter = field(default_factory=Scatter)
    _costs: RescaleCosts = field(default_factory=lambda: RescaleCosts(KEPT_COSTS))
    _writes_s: list[float] = field(default_factory=list)
    _trained_s: float = 0.0
    _trains_since_s: float | None = None
    _priors: Priors = ON_SUMMIT
    _planned: Curve | None = None
    _guessed: bool = False
    _reach: int = 0

    @property
    def rates(self) -> dict[int, float]:
        """Measured samples per second, by node count."""
        return {nodes: self._scatter.point(nodes, rate, self._now_s).per_s for nodes, rate in self._rates.items()}

    @property
    def counts(self) -> int:
        """On how many node counts it was measured."""
        return len(self._rates)

    @property
    def guessed(self) -> bool:
        """Whether no curve was given and no rate measured: then the curve is in units of one node's rate."""
        return self._spec.curve is None and not self._rates and not self._spec.known

    def estimates(self, now_s: float = 0.0) -> tuple[Estimate, ...]:
        """The estimated rates by node count, up to ``max_nodes`` at least; by ``now_s`` measured ones have aged."""
        given = self._spec.curve
        if given is not None and self._spec.fixed_curve:
            return tuple(
                Estimate(math.ceil(n), given.at(math.ceil(n)), error=0.0, measured=False) for n in given.nodes[1:]
            )
        later_s = max(0.0, now_s - self._now_s)
        ages_s = {nodes: self._now_s + later_s - rate.seen_s for nodes, rate in self._rates.items()}
        unscaled = 0.0 if self._rates or not self._spec.known else SCALE
        return tuple(
            replace(e, error=drifted(e.error, later_s), age_s=ages_s[e.nodes])
            if e.nodes in ages_s
            else replace(e, error=math.hypot(e.error, unscaled))
            for e in self._estimates()
        )

    def _estimates(self) -> tuple[Estimate, ...]:
        return estimates(self.points, self._spec.curve, self._priors, max(self._spec.max_nodes, self._reach))

    @property
    def points(self) -> tuple[MeasuredRate, ...]:
        """The measured rates with their errors, by node count: its own, and where it has none those of another trainer
        of its script."""
        own = [self._scatter.point(nodes, rate, self._now_s) for nodes, rate in sorted(self._rates.items())]
        return settled(joined(own, self._spec.known, self._priors), self._priors, newest=self._visit[0])

    @property
    def own(self) -> tuple[MeasuredRate, ...]:
        """Its own measured rates."""
        return tuple(point for point in self.points if point.visits)

    def for_another(self, now_s: float) -> tuple[MeasuredRate, ...]:
        """What another trainer of its script begins with."""
        return for_another(self.own, now_s - self._now_s)

    @property
    def curve(self) -> Curve:
        """The scaling curve, as far as it is known now."""
        if self._spec.curve is not None and (self._spec.fixed_curve or not self._rates):
            return self._spec.curve
        return curve_of(self._estimates())

    @property
    def planned(self) -> Curve:
        """The scaling curve to plan with."""
        return self._planned or self.curve

    @property
    def moved(self) -> bool:
        """Whether measurements contradict the curve of the last plan, or that curve was a guess."""
        if self._planned is None or self._spec.fixed_curve or not self._rates:
            return False
        return self._guessed or any(_differs(self._planned.at(p.nodes), p) for p in self.own)

    @property
    def doubt(self) -> float:
        """How much the pool's trainers differ in shape, relative to what is expected of one that has seen none."""
        return min(1.0, self._priors.ln_b.sd / ON_SUMMIT.ln_b.sd)

    def refresh(self) -> None:
        """Plan with the curve as it is known now, however little it has moved."""
        self._planned = None

    def extend(self, nodes: int) -> None:
        """Have the curve reach up to ``nodes`` nodes at least."""
        if nodes > max(self._spec.max_nodes, self._reach):
            self._reach, self._planned = nodes, None

    def learn(self, usual_per_s: float = 1.0, priors: Priors = ON_SUMMIT, now_s: float = 0.0) -> None:
        """Update the curve to plan with, before a plan is asked for, if it has moved. Without any measurement one node
        is assumed to do ``usual_per_s``; ``priors`` are the pool's."""
        self._priors, self._now_s = priors, max(self._now_s, now_s)
        if self.guessed:
            self._planned, self._guessed = self.curve.scaled(usual_per_s), True
        elif self._planned is None or self.moved:
            self._planned, self._guessed = self.curve, False

    def rescale_s(self, pool: RescaleCosts, *, up: bool) -> float:
        """R_j^up, or R_j^dw (FreeTrain eq. 13): the trainer's own; else that of others in its ``pool``, unless the user
        gave one; else the given or assumed one."""
        spec = self._spec
        if (own_s := self._costs.median_s(up=up)) is not None:
            return own_s
        if spec.assumed_costs and (pool_s := pool.median_s(up=up)) is not None:
            return pool_s
        return spec.rescale_up_s if up else spec.rescale_down_s

    @property
    def write_s(self) -> float | None:
        """Seconds that one rank needs for a checkpoint: the longest of the last ones, because it must fit into a grace
        period; None: not known yet.
        """
        return max(self._writes_s, default=None)

    def trained_s(self, now_s: float) -> float:
        """Seconds that it has trained until now."""
        return self._trained_s + (now_s - self._trains_since_s if self._trains_since_s is not None else 0.0)

    def trains(self, now_s: float, *, now: bool) -> None:
        """Record whether it trains from ``now_s`` on."""
        if now == (self._trains_since_s is not None):
            return
        self._trained_s, self._trains_since_s = self.trained_s(now_s), now_s if now else None

    def wrote(self, alone_s: float) -> None:
        """Add the duration of writing a checkpoint."""
        self._writes_s.append(alone_s)
        del self._writes_s[:-KEPT_COSTS]

    def rate(self, now_s: float, nodes: int, samples_per_s: float, generation: int = 0) -> None:
        """Add a rate that a group measured on ``nodes`` nodes at ``now_s``. A falling curve is valid; a rate of 0, or
        one that no machine can have, is ignored.
        """
        if samples_per_s <= 0 or not is_rate(samples_per_s):
            return
        before, visit = self._rates.get(nodes), (nodes, generation)
        self._now_s = now_s
        if visit != self._visit:
            self._begin_visit(nodes, samples_per_s)
        elif before is not None:
            self._scatter.note_report(before, samples_per_s)
            seconds = min(max(now_s - self._rated_s, FIRST_S), LONGEST_S)
            self._rates[nodes] = before.and_then(now_s, samples_per_s, seconds)
        self._visit, self._rated_s = visit, now_s

    def _begin_visit(self, nodes: int, samples_per_s: float) -> None:
        if (last := self._rates.get(self._visit[0])) is not None:
            self._scatter.note_visit(last)
        first = Rate(samples_per_s, NOISE**2 / FIRST_S, self._now_s)
        if nodes in self._rates:
            error = next(point.error for point in self.points if point.nodes == nodes)
            before = {"before_per_s": self.rates[nodes], "before_variance": error**2}
            first = replace(first, **before, earlier=self._rates[nodes].visits)
        self._rates[nodes] = first

    def cost(self, grew: bool, seconds: float) -> None:
        """Add the cost of a rescale up (``grew``) or down."""
        if not self._spec.fixed_curve:
            self._costs.note(up=grew, seconds=seconds)


def _differs(planned: float, now: MeasuredRate) -> bool:
    return planned <= 0 or abs(math.log(now.per_s / planned)) > max(LEAST_MOVE, 2 * now.error)


def experience(trainers: Sequence[Measured], at_first: Priors, before: Priors) -> Priors:
    """Return the pool's priors for the next trainer, from the newest of ``trainers`` that were measured on two counts
    or more, one of each script; ``at_first``, ``before``: its priors when it came up, and until now.
    """
    by_script = {t._spec.script or str(i): t for i, t in enumerate(trainers) if t.counts > 1}
    newest = list(by_script.values())[-KEPT_OF_POOL:]
    return priors_of([t.own for t in newest], at_first, start=before, rounds=2) if newest else before


def learn(trainers: Sequence[Measured], priors: Priors, now_s: float) -> None:
    """Update the curves of ``trainers`` before a plan; ``priors`` are the pool's.

    A trainer without a rate is assumed to be as fast on one node as the geometric mean of the others: otherwise it
    would never be tried if the objective is throughput.
    """
    share_scatter([trainer._scatter for trainer in trainers])
    known = [trainer for trainer in trainers if not trainer.guessed]
    for trainer in known:
        trainer.learn(priors=priors, now_s=now_s)
    rates = [rate for trainer in known if (rate := trainer.planned.single_node_rate()) > 0]
    for trainer in trainers:
        if trainer.guessed:
            trainer.learn(geometric_mean(rates or [1.0]), priors, now_s)
