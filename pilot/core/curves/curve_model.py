"""How a trainer scales: a model with three parameters, fitted to the few node counts at which it was measured.

The time per sample and node grows with the first step off a node and with each doubling::

    n / r(n) = t1 · (1 + a · [n > 1] + b · log2 n)

with ``r(n)`` samples per second on n nodes. ln a and ln b have normal priors, t1 has none, and the logarithms of the
measured rates are fitted, so the unit of a sample does not matter. The fit is the posterior mode that
Levenberg-Marquardt finds from the priors' means in a bounded number of steps; its error is the Laplace approximation.
The fits of many trainers give priors for the next one: :func:`priors_of`.

The rate per node never rises with n. The rate is concave for a and b as the priors expect them; a large a bends it the
other way at two nodes. Planners take either.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from pilot.core.curves.curve import RATES, Curve

SIGMA = 0.04
"""The standard deviation of a real trainer's log rate from the model, at any count."""

MISFIT = 0.5
"""The model's error, as a fraction of the growth in step time that it predicts from the nearest measured count:
trainers of another form (Amdahl's law, a ring, Pollux's) are off by about this much. With it, SIGMA, the priors and the
two below the stated errors match the actual ones: ``python -m benchmarks.curve_errors``."""

LINEAR = (0.35, 0.7)
"""How far a loss that grows with n (Amdahl's law), and not with its logarithm, would be off counts as an error by these
factors, beyond the measured counts and between them."""

ALONE = 1.6
"""Of a trainer measured on one count, only the priors say how it scales: its shape is less certain by this factor."""

_STEPS = 20
_SMALLEST_GAIN = 1e-9
_LARGEST_STEP = 2.0
_LARGEST = 60.0


@dataclass(frozen=True, slots=True)
class Normal:
    """A normal distribution."""

    mean: float
    sd: float


@dataclass(frozen=True, slots=True)
class Priors:
    """The prior distributions of ln a and ln b. The defaults come from seven ImageNet models on
    Summit (FreeTrain, Table 2), with larger deviations, because another machine differs from these by more than they
    differ from one another.
    """

    ln_a: Normal = Normal(-5.9, 2.0)
    ln_b: Normal = Normal(-3.3, 1.0)


ON_SUMMIT = Priors()
"""For pools whose trainers have not been measured yet."""

WIDE = Priors(Normal(-6.0, 2.5), Normal(-3.5, 1.4))
"""For trainers and networks about which nothing is known."""


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """``per_s`` (samples/s, greater than 0) was measured on ``nodes`` nodes, with a relative standard deviation
    ``error``, in ``visits`` separate visits to this count (2: or more; 0: by another trainer of the same script).
    """

    nodes: float
    per_s: float
    error: float = 0.0
    visits: int = 1

    @property
    def weight(self) -> float:
        """The weight of its logarithm in a fit."""
        return 1.0 / (SIGMA**2 + self.error**2)


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model. Without any point, ``per_s`` is in units of one node's rate.

    ``nodes`` are the counts of the points. ``mean_slopes`` and ``variance`` (of t1 at the points' centre) and
    ``covariance`` (of ln a and ln b: aa, ab, bb) say how sure it is.
    """

    ln_t1: float
    ln_a: float
    ln_b: float
    nodes: tuple[float, ...]
    mean_slopes: tuple[float, float]
    variance: float
    covariance: tuple[float, float, float]

    def per_s(self, nodes: float) -> float:
        """The rate on ``nodes`` nodes (1 or more)."""
        return math.exp(math.log(nodes) - self.ln_t1 - _growth(nodes, self.ln_a, self.ln_b)[0])

    def error(self, nodes: float) -> float:
        """The relative standard deviation of the rate, the model's own error included."""
        longer, by_a, by_b = _growth(nodes, self.ln_a, self.ln_b)
        near = min(self.nodes, key=lambda n: abs(math.log(n / nodes)), default=1.0)
        missed = MISFIT * (longer - _growth(near, self.ln_a, self.ln_b)[0])
        da, db = by_a - self.mean_slopes[0], by_b - self.mean_slopes[1]
        aa, ab, bb = self.covariance
        shape = missed * missed + da * da * aa + 2 * da * db * ab + db * db * bb
        shape = shape * ALONE**2 if len(self.nodes) < 2 else shape + self._if_linear(nodes, longer) ** 2
        return math.sqrt(SIGMA**2 + self.variance + shape)

    def _if_linear(self, nodes: float, longer: float) -> float:
        """The part of the error for a loss that is linear in n through the two nearest measured counts."""
        right = min(max(bisect_left(self.nodes, nodes), 1), len(self.nodes) - 1)
        (n0, t0), (n1, t1) = (
            (n, math.exp(_growth(n, self.ln_a, self.ln_b)[0])) for n in self.nodes[right - 1 : right + 1]
        )
        time = t0 + (t1 - t0) * (nodes - n0) / (n1 - n0)
        return LINEAR[n0 < nodes < n1] * (math.log(max(time, 1.0)) - longer)


def fit(points: Sequence[MeasuredRate], priors: Priors) -> Fit:
    """The most likely model given ``points``, which are at different counts."""
    ln_a, ln_b, damping = priors.ln_a.mean, priors.ln_b.mean, 1e-3
    at = _evaluate(points, priors, ln_a, ln_b)
    for _ in range(_STEPS if points else 0):
        step_a, step_b = _step(at, damping)
        next_a, next_b = _bounded(ln_a, step_a), _bounded(ln_b, step_b)
        there = _evaluate(points, priors, next_a, next_b)
        gain = at.cost - there.cost
        damping *= 0.2 if gain >= 0 else 5
        if gain >= 0:
            ln_a, ln_b, at = next_a, next_b, there
        if 0 <= gain < _SMALLEST_GAIN:
            break
    aa, ab, bb = at.curvature
    determinant = aa * bb - ab * ab
    variance = max(0.0, 1 / sum(p.weight for p in points) - SIGMA**2 / len(points)) if points else 0.0
    covariance = bb / determinant, -ab / determinant, aa / determinant
    return Fit(at.ln_t1, ln_a, ln_b, tuple(p.nodes for p in points), at.mean_slopes, variance, covariance)


def priors_of(
    trainers: Sequence[Sequence[MeasuredRate]],
    around: Priors = WIDE,
    worth: float = 2.0,
    start: Priors | None = None,
    rounds: int = 10,
) -> Priors:
    """Priors for the next trainer, from the points of others: empirical Bayes, by expectation maximisation.

    ``around`` counts as ``worth`` trainers, so that a few similar ones do not make the result too certain. The search
    begins at ``start`` (None: ``around``) and takes ``rounds`` rounds.
    """
    priors = start or around
    for _ in range(rounds):
        fits = [fit(points, priors) for points in trainers]
        priors = Priors(
            _normal([(f.ln_a, f.covariance[0]) for f in fits], around.ln_a, worth),
            _normal([(f.ln_b, f.covariance[2]) for f in fits], around.ln_b, worth),
        )
    return priors


def _normal(found: Sequence[tuple[float, float]], around: Normal, worth: float) -> Normal:
    """The normal distribution of means and variances ``found``, with ``around`` counted ``worth`` times."""
    count = len(found) + worth
    mean = (sum(m for m, _ in found) + worth * around.mean) / count
    spread = sum((m - mean) ** 2 + variance for m, variance in found)
    return Normal(mean, math.sqrt((spread + worth * (around.sd**2 + (around.mean - mean) ** 2)) / count))


def speedup(nodes: float, ln_a: float, ln_b: float) -> float:
    """The speed-up of ``nodes`` nodes over one."""
    if nodes <= 1:
        return nodes
    return nodes / (1.0 + math.exp(ln_a) + math.exp(ln_b) * math.log2(nodes))


def _growth(nodes: float, ln_a: float, ln_b: float) -> tuple[float, float, float]:
    """ln(1 + a · [n > 1] + b · log2 n), and its derivatives by ln a and ln b."""
    if nodes <= 1:
        return 0.0, 0.0, 0.0
    by_a, by_b = math.exp(ln_a), math.exp(ln_b) * math.log2(nodes)
    total = 1.0 + by_a + by_b
    return math.log(total), by_a / total, by_b / total


class _Place(NamedTuple):
    """A point of the search: its cost, which is minimised, and the cost's derivatives."""

    cost: float
    ln_t1: float
    mean_slopes: tuple[float, float]
    down: tuple[float, float]
    curvature: tuple[float, float, float]


def _evaluate(points: Sequence[MeasuredRate], priors: Priors, ln_a: float, ln_b: float) -> _Place:
    """The cost at ln a and ln b, with the best t1 for them, so that two parameters remain."""
    terms = []
    for point in points:
        longer, slope_a, slope_b = _growth(point.nodes, ln_a, ln_b)
        terms.append((point.weight, math.log(point.nodes / point.per_s) - longer, slope_a, slope_b))
    total = sum(term[0] for term in terms) or 1.0
    mean_time, mean_a, mean_b = (sum(term[0] * term[i] for term in terms) / total for i in (1, 2, 3))
    far_a, far_b = priors.ln_a.mean - ln_a, priors.ln_b.mean - ln_b
    aa, ab, bb = priors.ln_a.sd**-2, 0.0, priors.ln_b.sd**-2
    cost, down_a, down_b = far_a * far_a * aa + far_b * far_b * bb, far_a * aa, far_b * bb
    for weight, time, slope_a, slope_b in terms:
        left, da, db = time - mean_time, slope_a - mean_a, slope_b - mean_b
        cost += weight * left * left
        down_a += weight * left * da
        down_b += weight * left * db
        aa += weight * da * da
        ab += weight * da * db
        bb += weight * db * db
    return _Place(cost, mean_time, (mean_a, mean_b), (down_a, down_b), (aa, ab, bb))


def _step(at: _Place, damping: float) -> tuple[float, float]:
    """One step towards the smallest cost."""
    aa, ab, bb = at.curvature[0] * (1 + damping), at.curvature[1], at.curvature[2] * (1 + damping)
    determinant = aa * bb - ab * ab
    step_a, step_b = at.down[0] * bb - at.down[1] * ab, at.down[1] * aa - at.down[0] * ab
    return step_a / determinant, step_b / determinant


def _bounded(at: float, step: float) -> float:
    return max(-_LARGEST, min(_LARGEST, at + max(-_LARGEST_STEP, min(_LARGEST_STEP, step))))


GIVEN_ERROR = 0.1
"""The relative error that is assumed of a user's curve, until measured rates contradict its shape."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated rate on a number of nodes."""

    nodes: int  #: the number of nodes
    per_s: float  #: samples per second
    error: float  #: its relative standard deviation; 0: it is taken as given
    measured: bool  #: whether it was measured on this many nodes
    by_other: bool = False  #: whether another trainer of its script was measured on them
    age_s: float | None = None  #: how long ago it was last measured; null: it was not


@lru_cache(maxsize=128)
def estimates(points: tuple[MeasuredRate, ...], given: Curve | None, priors: Priors, most: int) -> tuple[Estimate, ...]:
    """Return the scaling curve to plan with: estimates for 1, 2, 4, … and ``most`` nodes, and for the counts of
    ``points`` (increasing) and ``given``.

    Estimates pass through the measured rates. Their shape is that of the user's curve if there is one, else the
    model's. The ratio of the measured rates to the shape is interpolated between them (linear in log n) and kept
    beyond. Between two measured counts the model stays between their rates: a trainer that is as fast on 16 nodes as on
    one is assumed to be so on 8. Without any point or curve the rates are in units of one node's rate.
    """
    shape, error = _shape(points, given, priors)
    ratios = [(p.nodes, math.log(p.per_s / at)) for p in points if (at := shape(p.nodes)) > 0]
    measured = {int(p.nodes): p for p in points}
    doublings = (1 << i for i in range(most.bit_length()))
    found = []
    of_given = map(math.ceil, given.nodes[1:]) if given is not None else ()
    for nodes in sorted({most, *doublings, *measured, *of_given}):
        if (point := measured.get(nodes)) is not None:
            found.append(Estimate(nodes, point.per_s, point.error, point.visits > 0, by_other=not point.visits))
            continue
        per_s = shape(nodes) * math.exp(_between(ratios, nodes))
        if given is None:
            per_s = _held_between(points, nodes, per_s)
        found.append(Estimate(nodes, 0.0 if per_s < RATES[0] else min(per_s, RATES[1]), error(nodes), measured=False))
    return tuple(found)


def curve_of(known: Sequence[Estimate]) -> Curve:
    """The curve through estimates."""
    return Curve.of((e.nodes, e.per_s) for e in known)


def _shape(
    points: Sequence[MeasuredRate], given: Curve | None, priors: Priors
) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """The rate by node count, up to a factor, and its relative error."""
    if given is not None:
        off = [math.log(p.per_s / at) for p in points if (at := given.at(p.nodes)) > 0] or [0.0]
        return given.at, lambda _nodes: math.hypot(GIVEN_ERROR, max(off) - min(off))
    made = fit(points, priors)
    return made.per_s, made.error


def _between(ratios: Sequence[tuple[float, float]], nodes: int) -> float:
    """By how much the logarithm differs from the shape's: linear in log n between the ``ratios``, constant beyond."""
    if not ratios:
        return 0.0
    right = bisect_left(ratios, (nodes, -math.inf))
    if right in (0, len(ratios)):
        return ratios[min(right, len(ratios) - 1)][1]
    (n0, off0), (n1, off1) = ratios[right - 1], ratios[right]
    return off0 + (off1 - off0) * math.log(nodes / n0) / math.log(n1 / n0)


def _held_between(points: Sequence[MeasuredRate], nodes: int, per_s: float) -> float:
    """Limit an estimate to the range between its measured neighbours."""
    right = bisect_left([p.nodes for p in points], nodes)
    if right == len(points):
        return per_s
    if right == 0:
        return min(per_s, points[0].per_s)
    low, high = sorted((points[right - 1].per_s, points[right].per_s))
    return min(max(per_s, low), high)
