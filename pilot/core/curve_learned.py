"""The scaling curve to plan with: measured where it was measured, estimated between and beyond.

Estimates pass through the measured rates. Their shape is that of the user's curve if there is one, else that of
:mod:`pilot.core.curve_model`. The ratio of the measured rates to the shape is interpolated between them (linear in
log n) and kept beyond. Between two measured counts the model stays between their rates: a trainer that is as fast on 16
nodes as on one is assumed to be so on 8.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pilot.core.curve import RATES, Curve
from pilot.core.curve_model import Point, Priors, fit

GIVEN_ERROR = 0.1
"""The relative error that is assumed of a user's curve."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known about the rate on ``nodes`` nodes."""

    nodes: int  #: how many nodes
    per_s: float  #: samples per second
    error: float  #: its relative standard deviation; 0: it is taken as given
    measured: bool  #: whether it was measured on this many nodes


@lru_cache(maxsize=128)
def estimates(points: tuple[Point, ...], given: Curve | None, priors: Priors, most: int) -> tuple[Estimate, ...]:
    """What is known about 1, 2, 4, … and ``most`` nodes, and the counts of ``points`` (which rise) and of ``given``.

    Without any point or curve the rates are in units of one node's rate.
    """
    shape, error = _given(given) if given is not None else _model(points, priors)
    ratios = [(p.nodes, math.log(p.per_s / at)) for p in points if (at := shape(p.nodes)) > 0]
    measured = {int(p.nodes): p for p in points}
    found = []
    for nodes in _counts(most, [*measured, *(map(math.ceil, given.nodes[1:]) if given is not None else ())]):
        point = measured.get(nodes)
        if point is not None:
            found.append(Estimate(nodes, point.per_s, point.error, measured=True))
            continue
        per_s = shape(nodes) * math.exp(_between(ratios, nodes))
        if given is None:
            per_s = _held_between(points, nodes, per_s)
        found.append(Estimate(nodes, _within_rates(per_s), error(nodes), measured=False))
    return tuple(found)


def curve_of(known: Sequence[Estimate]) -> Curve:
    """The curve through estimates."""
    return Curve.of((e.nodes, e.per_s) for e in known)


def _counts(most: int, others: Sequence[int]) -> list[int]:
    doublings = [1 << i for i in range(most.bit_length())]
    return sorted({most, *doublings, *others})


def _model(points: Sequence[Point], priors: Priors) -> tuple[Callable[[float], float], Callable[[float], float]]:
    made = fit(points, priors)
    return made.per_s, made.error


def _given(curve: Curve) -> tuple[Callable[[float], float], Callable[[float], float]]:
    return curve.at, lambda _nodes: GIVEN_ERROR


def _between(ratios: Sequence[tuple[float, float]], nodes: int) -> float:
    """By how much the logarithm differs from the shape's: linear in log n between the ``ratios``, constant beyond."""
    if not ratios:
        return 0.0
    right = bisect_left(ratios, (nodes, -math.inf))
    if right in (0, len(ratios)):
        return ratios[min(right, len(ratios) - 1)][1]
    (n0, off0), (n1, off1) = ratios[right - 1], ratios[right]
    return off0 + (off1 - off0) * math.log(nodes / n0) / math.log(n1 / n0)


def _held_between(points: Sequence[Point], nodes: int, per_s: float) -> float:
    """Limit an estimate to the range between its measured neighbours."""
    right = bisect_left([p.nodes for p in points], nodes)
    if right in (0, len(points)):
        return per_s
    ends = sorted((points[right - 1].per_s, points[right].per_s))
    return min(max(per_s, ends[0]), ends[1])


def _within_rates(per_s: float) -> float:
    return 0.0 if per_s < RATES[0] else min(per_s, RATES[1])
