"""How fast trainers compute on nodes of each type, relative to their reference type.

Ranks time their own computing, without waiting for others. Where the shares of a step's samples follow these times, all
rates of a group change alike with its size; so rates of one group are compared, and what was known before is shifted to
the level of the newest group. A trainer's reference is the type on which it was measured first: there its speed is 1.

The speed on a type where a trainer was not measured comes from the others: ln rate = level of the trainer + level of
the type, fitted to all rates of those that were measured on two types or more. Types are expected to be alike (a prior
for their levels), so few measurements say little.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from pilot.core.ids import NodeId
from pilot.core.pool.node_type import type_of

NOISE = 0.1
"""The relative standard deviation of the rate of one node in one measurement."""

SYSTEMATIC = 0.02
"""The part of a type's error that does not become smaller with more measurements."""

REMEMBERED = 60
"""A mean forgets what came before so many rates of nodes."""

TRAINERS = 0.25
"""By how much the speeds of two trainers on one type differ (a standard deviation of logarithms)."""

TYPES = 0.5
"""By how much types are expected to differ where nothing was measured."""

SLOW_SHARE = 0.6
"""The speed that a slow node is expected to have, of its type's, where nothing was measured."""

KEPT, ROUNDS = 50, 30
"""So many of the newest trainers, and rounds of the fit."""

LEAST_MOVE = 0.05
"""A speed that has moved by less than this, relative, counts as unchanged."""


@dataclass(frozen=True, slots=True)
class Speed:
    """``value`` nodes of the reference type compute as fast as one of this type; ``error``: its standard deviation,
    relative."""

    value: float
    error: float
    measured: bool


@dataclass(frozen=True, slots=True)
class TypeRate:
    """The logarithm of the rate of one node of a type, the mean of ``count`` rates of nodes."""

    ln_per_s: float
    count: int

    @property
    def variance(self) -> float:
        """Of the logarithm."""
        return SYSTEMATIC**2 + NOISE**2 / self.count

    def and_then(self, ln_per_s: float, count: int) -> TypeRate:
        """The mean with ``count`` more rates, whose median is known."""
        before = min(self.count, REMEMBERED)
        share = count / (before + count)
        return TypeRate(self.ln_per_s + share * (ln_per_s - self.ln_per_s), before + count)


@dataclass(frozen=True, slots=True)
class TypeLevels:
    """The levels of types (see above) that were measured by trainers of several, with their variances."""

    ln: Mapping[str, float]
    variance: Mapping[str, float]

    def of(self, kind: str) -> float:
        """The level of a type; 0, or a slow node's distance from it, where nothing was measured."""
        if kind in self.ln:
            return self.ln[kind]
        return 0.0 if (plain := type_of(kind)) == kind else self.of(plain) + math.log(SLOW_SHARE)

    def variance_of(self, kind: str) -> float:
        """How uncertain the level of a type is."""
        return self.variance.get(kind, TYPES**2)


NO_LEVELS = TypeLevels({}, {})


@dataclass(slots=True)
class Speeds:
    """What was measured of one trainer: ``rates`` by type, on a group of ``nodes`` nodes or shifted to one.

    ``reference``: its reference type (None: not measured yet). ``equal_shares``: every node gets the same share.
    ``planned``: the speeds in the last problem; they stay until a measurement differs by more than its error.
    """

    reference: str | None = None
    rates: dict[str, TypeRate] = field(default_factory=dict)
    nodes: int = 0
    equal_shares: bool = False
    planned: dict[str, float] = field(default_factory=dict)

    def refer(self, kinds: Iterable[str]) -> None:
        """Measure it from now on relative to the most frequent of ``kinds``, if it has no reference yet."""
        if self.reference is None:
            names = [type_of(kind) for kind in kinds]
            self.reference = max(names, key=names.count)

    def shares(self, per_s: Mapping[NodeId, float], kinds: Mapping[NodeId, str]) -> dict[NodeId, float]:
        """Each node's rate relative to what its type does, where that is known: the median of its type's nodes in the
        group, without slow ones; of one alone the other types' nodes say it, or what it did in a group of this size.
        """
        alike: dict[str, list[NodeId]] = {}
        for node in per_s:
            alike.setdefault(kinds[node], []).append(node)
        usual = {kind: median(per_s[node] for node in nodes) for kind, nodes in alike.items()}
        found = {}
        for node, rate in per_s.items():
            plain = type_of(kinds[node])
            others = [other for other in alike.get(plain, ())[:3] if other != node]
            expected = usual.get(plain) if len(others) > 1 else per_s[others[0]] if others else None
            if expected is None and plain in self.rates:
                expected = self._expected(node, plain, per_s, kinds)
            if expected is not None:
                found[node] = rate / expected
        return found

    def _expected(
        self, node: NodeId, plain: str, per_s: Mapping[NodeId, float], kinds: Mapping[NodeId, str]
    ) -> float | None:
        """The rate of a node of the type ``plain`` according to the other types' nodes, or to earlier groups."""
        known = [(rate, kinds[other]) for other, rate in per_s.items() if other != node and kinds[other] in self.rates]
        if not known and len(per_s) != self.nodes and not self.equal_shares:
            return None
        off = median(math.log(rate) - self.rates[kind].ln_per_s for rate, kind in known) if known else 0.0
        return math.exp(self.rates[plain].ln_per_s + off)

    def note(self, nodes: int, per_s: Mapping[NodeId, float], kinds: Mapping[NodeId, str], *, equal: bool) -> None:
        """Add the rates of those nodes of a group of ``nodes`` that are as fast as their types."""
        by_kind: dict[str, list[float]] = {}
        for node, rate in per_s.items():
            by_kind.setdefault(kinds[node], []).append(math.log(rate))
        here = {kind: median(rates) for kind, rates in by_kind.items()}
        both = [here[kind] - self.rates[kind].ln_per_s for kind in here if kind in self.rates]
        if both and nodes != self.nodes and not equal:
            off = fmean(both)
            self.rates = {kind: replace(rate, ln_per_s=rate.ln_per_s + off) for kind, rate in self.rates.items()}
        for kind, ln_per_s in here.items():
            known, count = self.rates.get(kind), len(by_kind[kind])
            self.rates[kind] = known.and_then(ln_per_s, count) if known else TypeRate(ln_per_s, count)
        self.nodes, self.equal_shares = nodes, equal

    def on(self, kinds: Iterable[str], levels: TypeLevels, given: Mapping[str, float]) -> dict[str, Speed]:
        """The speeds on ``kinds``: as ``given``, else as measured, else as ``levels`` say."""
        return {kind: self._on(kind, levels, given) for kind in kinds}

    def _on(self, kind: str, levels: TypeLevels, given: Mapping[str, float]) -> Speed:
        plain = type_of(kind)
        if plain in given and plain == kind:
            return Speed(given[kind], 0.0, measured=True)
        reference = plain if plain in given else self.reference
        factor = given.get(plain, 1.0)
        if kind == reference:
            return Speed(1.0, 0.0, measured=True)
        one, other = self.rates.get(kind), self.rates.get(reference) if reference is not None else None
        if one is not None and other is not None:
            error = math.sqrt(one.variance + other.variance)
            return Speed(factor * math.exp(one.ln_per_s - other.ln_per_s), error, measured=True)
        error = math.sqrt(TRAINERS**2 + levels.variance_of(kind))
        if reference is None:
            return Speed(math.exp(levels.of(kind)), error, measured=False)
        error = math.hypot(error, math.sqrt(levels.variance_of(reference)))
        return Speed(factor * math.exp(levels.of(kind) - levels.of(reference)), error, measured=False)

    def plan_with(self, now: Mapping[str, Speed]) -> dict[str, float]:
        """The speeds for a problem with these types: the last problem's, where they have not moved."""
        self.planned = {
            kind: self.planned[kind] if kind in self.planned and not _moved(self.planned[kind], speed) else speed.value
            for kind, speed in now.items()
        }
        return self.planned

    def moved(self, given: Mapping[str, float]) -> bool:
        """Whether measurements contradict the speeds of the last problem."""
        now = self.on([kind for kind in self.planned if kind in self.rates], NO_LEVELS, given)
        return any(speed.measured and _moved(self.planned[kind], speed) for kind, speed in now.items())


def _moved(planned: float, now: Speed) -> bool:
    return abs(math.log(now.value / planned)) > max(LEAST_MOVE, now.error)


def type_levels(trainers: Sequence[Speeds]) -> TypeLevels:
    """Fit the levels of types to the rates of ``trainers``, by turns with the trainers' own levels."""
    several = [trainer.rates for trainer in trainers if len(trainer.rates) > 1][-KEPT:]
    kinds = sorted({kind for rates in several for kind in rates})
    ln = dict.fromkeys(kinds, 0.0)
    weights = [{kind: 1 / (TRAINERS**2 + rate.variance) for kind, rate in rates.items()} for rates in several]
    totals = {kind: sum(of.get(kind, 0.0) for of in weights) + TYPES**-2 for kind in kinds}
    for _ in range(ROUNDS if kinds else 0):
        pulled = dict.fromkeys(kinds, 0.0)
        for rates, of in zip(several, weights, strict=True):
            own = sum(of[kind] * (rate.ln_per_s - ln[kind]) for kind, rate in rates.items()) / sum(of.values())
            for kind, rate in rates.items():
                pulled[kind] += of[kind] * (rate.ln_per_s - own)
        ln = {kind: pulled[kind] / totals[kind] for kind in kinds}
    return TypeLevels(ln, {kind: 1 / totals[kind] for kind in kinds})
