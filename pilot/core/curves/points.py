"""Measured points before a model is fitted to them: old ones, those of another trainer, and those that contradict each
other.

Between two neighbouring counts a rate rises at most in proportion to the nodes, and falls at most in inverse
proportion. Points beyond that were measured under different load, or one of them is wrong: their errors cover the
difference, so the next visit replaces them. Superlinear speed-up exists (caches), so points that two visits agree on
are believed; others count as at most linear.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from pilot.core.curves.curve import RATES
from pilot.core.curves.curve_model import MeasuredRate, Priors, estimates, fit

DRIFT = 0.03
"""A rate is a random walk: after an hour it has changed by this much, relative (one standard deviation)."""

DRIFT_MOST = 0.15
"""By how much a rate changes at most, one standard deviation: what a day does."""

ANOTHER_RUN = 0.1
"""How far the shape of another run's curve differs, relative: other nodes, other arguments."""

SCALE = 0.4
"""The standard deviation of the logarithm of the factor between two runs of one script: faster nodes, other batches."""

TWICE = 2
"""Visits to a count whose rate is believed even if it is superlinear."""


def drifted(error: float, age_s: float) -> float:
    """The relative error of a rate that was last seen ``age_s`` ago."""
    return math.hypot(error, min(DRIFT * math.sqrt(max(0.0, age_s) / 3600), DRIFT_MOST))


def for_another(points: Iterable[MeasuredRate], age_s: float) -> tuple[MeasuredRate, ...]:
    """A trainer's own ``points`` as another trainer of its script begins with them, ``age_s`` after the last."""
    errors = ((p, math.hypot(drifted(p.error, age_s), ANOTHER_RUN)) for p in points if p.visits)
    return tuple(MeasuredRate(p.nodes, p.per_s, error, visits=0) for p, error in errors)


def joined(own: Sequence[MeasuredRate], known: Sequence[MeasuredRate], priors: Priors) -> tuple[MeasuredRate, ...]:
    """``own`` points, and on other counts those ``known`` from another trainer times an unknown factor.

    The factor's logarithm has a prior around 0 (:data:`SCALE`); own rates tell it, where the other trainer was measured
    or where its fit says what it would have done. The more they disagree about it, the less certain is what is known.
    """
    if not own or not known:
        return tuple(own or known)
    others, found = {p.nodes: p for p in known}, []
    for point in own:
        expected = estimates(tuple(known), None, priors, int(point.nodes))
        other = others.pop(point.nodes, None) or next(e for e in expected if e.nodes == point.nodes)
        found.append((math.log(point.per_s / max(other.per_s, RATES[0])), 1 / (point.error**2 + other.error**2)))
    weight = SCALE**-2 + sum(w for _, w in found)
    factor = sum(w * off for off, w in found) / weight
    misfit = max(1.0, sum(w * (off - factor) ** 2 for off, w in found) / len(found))
    scaled = (
        replace(p, per_s=p.per_s * math.exp(factor), error=math.sqrt(misfit * (p.error**2 + 1 / weight)))
        for p in others.values()
    )
    return tuple(sorted([*own, *scaled], key=lambda p: p.nodes))


def settled(points: Sequence[MeasuredRate], priors: Priors, newest: int = 0) -> tuple[MeasuredRate, ...]:
    """``points`` (increasing) as plans use them: at most linear; those that contradict each other are uncertain, and
    are moved to the model's compromise between all points. Of two, the one that was visited less often is, or the one
    that is not ``newest``, the count that was measured last."""
    trust = [1.5 if p.nodes == newest and p.visits == 1 else p.visits for p in points]
    beyond = [0.0] * len(points)
    for i, (p, q) in enumerate(pairwise(points)):
        excess = abs(math.log(q.per_s / p.per_s)) - math.log(q.nodes / p.nodes)
        if excess > 2 * math.hypot(p.error, q.error) and min(trust[i : i + 2]) < TWICE:
            beyond[i] = math.hypot(beyond[i], excess if trust[i] <= trust[i + 1] else 0.0)
            beyond[i + 1] = excess if trust[i + 1] <= trust[i] else 0.0
    if any(beyond):
        points = [replace(p, error=math.hypot(p.error, more)) for p, more in zip(points, beyond, strict=True)]
        made = fit(points, priors)
        points = [replace(p, per_s=made.per_s(p.nodes)) if more else p for p, more in zip(points, beyond, strict=True)]
    return tuple(_capped(_raised(points[::-1])[::-1]))


def _raised(falling: Iterable[MeasuredRate]) -> list[MeasuredRate]:
    """Points (decreasing), each with at least the rate per node of the next larger one that was visited more often."""
    found, above = [], [0.0] * (TWICE + 2)
    for point in falling:
        if (least := above[point.visits + 1]) > point.per_s / point.nodes:
            point = replace(point, per_s=least * point.nodes)
        above[: point.visits + 1] = [point.per_s / point.nodes] * (point.visits + 1)
        found.append(point)
    return found


def _capped(rising: Iterable[MeasuredRate]) -> list[MeasuredRate]:
    """Points (increasing), each with at most the rate per node of the next smaller one that was visited as often."""
    found, below = [], [math.inf] * (TWICE + 1)
    for point in rising:
        if (most := below[point.visits]) < point.per_s / point.nodes and point.visits < TWICE:
            point = replace(point, per_s=most * point.nodes)
        below[: point.visits + 1] = [point.per_s / point.nodes] * (point.visits + 1)
        found.append(point)
    return found
