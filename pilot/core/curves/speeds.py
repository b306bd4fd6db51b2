"""How fast trainers compute on nodes of each type, relative to their reference type.

Ranks time their own computing, without waiting for others. A trainer's reference is the type on which it was measured
first: there its speed is 1. Where it was not measured, its speed is the mean of the others', in logarithms: of those
that were measured on both types, and a prior that says that types are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, median_low

from pilot.core.ids import NodeId
from pilot.core.pool.node_type import type_of

NOISE, SYSTEMATIC = 0.1, 0.02
"""The relative standard deviation of one node's rate in one measurement, and its part that no repetition reduces."""

REMEMBERED = 60
"""A mean forgets what came before so many rates of nodes."""

TRAINERS, TYPES = 0.25, 0.5
"""How much the speeds of two trainers on a type differ, and types where nothing was measured (standard deviations)."""

SLOW_SHARE = 0.6
"""The speed that a slow node is expected to have, of its type's, where nothing was measured."""


@dataclass(frozen=True, slots=True)
class Speed:
    """``value`` nodes of the reference type compute as fast as one of this type; ``error`` is relative."""

    value: float
    error: float = 0.0
    measured: bool = True


@dataclass(slots=True)
class Speeds:
    """What was measured of one trainer: the logarithms of its rates by type, as on a group of ``nodes`` nodes, and from
    how many rates of nodes. ``reference``: its reference type; None: not known yet."""

    reference: str | None = None
    ln_per_s: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    nodes: int = 0
    equal_shares: bool = False  #: each node gets the same share of a step's samples

    def refer(self, kinds: Sequence[str]) -> None:
        """Take the most frequent of ``kinds`` for the reference, if there is none yet."""
        if self.reference is None:
            self.reference = type_of(max(kinds, key=kinds.count))

    def shares(self, per_s: Mapping[NodeId, float], kinds: Mapping[NodeId, str]) -> dict[NodeId, float]:
        """Each node's rate relative to what its type does, as far as that is known: the group's other nodes of its type
        that are not slow, or else one in an earlier group of this size."""
        found = {}
        for node, rate in per_s.items():
            plain = type_of(kinds[node])
            others = [r for other, r in per_s.items() if other != node and kinds[other] == plain]
            if others:
                found[node] = rate / median_low(others)
            elif plain in self.ln_per_s and len(per_s) == self.nodes:
                found[node] = rate / math.exp(self.ln_per_s[plain])
        return found

    def note(self, nodes: int, per_s: Mapping[str, Sequence[float]], *, equal: bool) -> None:
        """Add the rates of a group of ``nodes``, by type. If shares are not ``equal``, nodes get others in a group of
        another size: all that is known is shifted by as much as the rates on its types have changed."""
        here = {kind: math.log(median(rates)) for kind, rates in per_s.items()}
        changed = [here[kind] - self.ln_per_s[kind] for kind in here if kind in self.ln_per_s]
        if changed and nodes != self.nodes and not equal:
            self.ln_per_s = {kind: ln + fmean(changed) for kind, ln in self.ln_per_s.items()}
        for kind, ln in here.items():
            before, new = min(self.counts.get(kind, 0), REMEMBERED), len(per_s[kind])
            old = self.ln_per_s.get(kind, ln)
            self.ln_per_s[kind], self.counts[kind] = old + (ln - old) * new / (before + new), before + new
        self.nodes, self.equal_shares = nodes, equal

    def relative(self, kind: str, reference: str | None) -> Speed | None:
        """Its speed on ``kind`` relative to ``reference``; None: it was not measured on both."""
        if reference not in self.ln_per_s or kind not in self.ln_per_s:
            return None
        error = math.hypot(SYSTEMATIC, NOISE / math.sqrt(min(self.counts[kind], self.counts[reference])))
        return Speed(math.exp(self.ln_per_s[kind] - self.ln_per_s[reference]), error)


def speed(of: Speeds, kind: str, others: Callable[[], Sequence[Speeds]], given: Mapping[str, float]) -> Speed:
    """A trainer's speed on nodes that count as ``kind``: as ``given``, or measured, or as ``others`` say, which are
    asked only then."""
    plain = type_of(kind)
    reference = plain if plain in given else of.reference
    if reference is None:
        reference = next((other.reference for other in others()), None)  # what it will probably be
    found = Speed(1.0) if kind == reference else of.relative(kind, reference)
    found = found or _expected(kind, reference, others())
    return Speed(given[plain] * found.value) if plain in given else found


def _expected(kind: str, reference: str | None, others: Sequence[Speeds]) -> Speed:
    found = [math.log(known.value) for other in others if (known := other.relative(kind, reference)) is not None]
    plain, weight = type_of(kind), len(found) + (TRAINERS / TYPES) ** 2
    error = TRAINERS * math.sqrt(1 + 1 / weight)
    if not found and kind != plain:
        usual = 1.0 if plain == reference else _expected(plain, reference, others).value
        return Speed(SLOW_SHARE * usual, error, measured=False)
    return Speed(math.exp(sum(found) / weight), error, measured=False)
