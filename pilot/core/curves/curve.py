"""Scaling curves: piecewise linear functions of the node count."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeGuard

from pilot.core.errors import UserError

RATES = (1e-9, 1e15)
"""The range of a rate, per second: from one in 30 years to more than any machine does. Nothing overflows within it."""


def is_rate(per_s: float | None) -> TypeGuard[float]:
    """Whether ``per_s`` is a usable rate: 0, or within :data:`RATES`."""
    return per_s is not None and (per_s == 0 or RATES[0] <= per_s <= RATES[1])


@dataclass(frozen=True, slots=True)
class Curve:
    """(nodes, value per second) points, linear between them, (0, 0) included (FreeTrain eqs 11-12).

    Beyond the last point the last point's value per node holds. Values may be flat or falling.
    """

    nodes: tuple[float, ...]  #: node counts, strictly increasing, the first one 0
    per_s: tuple[float, ...]  #: value at each count, finite and not negative, the first one 0

    def __post_init__(self) -> None:
        if len(self.nodes) != len(self.per_s):
            raise UserError(
                f"a scaling curve needs as many rates as node counts, got {len(self.per_s)} and {len(self.nodes)}"
            )
        if len(self.nodes) < 2 or self.nodes[0] != 0 or self.per_s[0] != 0:
            raise UserError("a scaling curve needs the point (0, 0) and one more; use Curve.of to have (0, 0) added")
        if not all(map(math.isfinite, (*self.nodes, *self.per_s))):
            raise UserError("a scaling curve has a value that is not a finite number")
        if any(b <= a for a, b in zip(self.nodes, self.nodes[1:], strict=False)):
            raise UserError("the node column of a scaling curve must be strictly increasing")
        if any(rate < 0 for rate in self.per_s):
            raise UserError("a scaling curve has a negative rate")

    @classmethod
    def of(cls, points: Iterable[Sequence[float]]) -> Curve:
        """A curve through ``points``, with (0, 0) added where it is missing."""
        try:
            rows = [(float(n), float(v)) for n, v in points]
        except OverflowError:  # an integer beyond the largest float
            raise UserError("a scaling curve has a value that is not a finite number") from None
        if not rows or rows[0][0] != 0:
            rows.insert(0, (0.0, 0.0))
        return cls(tuple(n for n, _ in rows), tuple(v for _, v in rows))

    @classmethod
    def proportional(cls, per_node_s: float = 1.0) -> Curve:
        """The curve of perfect scaling: twice the nodes, twice the rate."""
        return cls((0.0, 1.0), (0.0, per_node_s))

    def at(self, nodes: float) -> float:
        """Value per second on ``nodes`` nodes (FreeTrain eq. 12)."""
        last = len(self.nodes) - 1
        if nodes >= self.nodes[last]:
            return self.per_s[last] * nodes / self.nodes[last]
        right = bisect_left(self.nodes, nodes)
        if self.nodes[right] == nodes:
            return self.per_s[right]
        n0, n1 = self.nodes[right - 1], self.nodes[right]
        v0, v1 = self.per_s[right - 1], self.per_s[right]
        return v0 + (v1 - v0) * (nodes - n0) / (n1 - n0)

    def counts(self) -> set[int]:
        """The integer node counts at and beside which the curve bends."""
        return {count for nodes in self.nodes[1:] for count in (math.floor(nodes), math.ceil(nodes))}

    def slopes(self) -> list[float]:
        """The value of one more node after each point."""
        ends = zip(pairwise(self.nodes), pairwise(self.per_s), strict=True)
        return [
            *((after - at) / (right - left) for (left, right), (at, after) in ends),
            self.per_s[-1] / self.nodes[-1],
        ]

    def scaled(self, factor: float) -> Curve:
        """The curve with all values multiplied by ``factor`` (not negative)."""
        return Curve(self.nodes, tuple(v * factor for v in self.per_s))

    def single_node_rate(self) -> float:
        """The value of one node: at 1 node, or per node at the first measured count above 1."""
        return self.at(1.0)


def concave_hull(points: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """The corners of the concave hull of (nodes, value) ``points``, whose node counts rise strictly."""
    hull: list[tuple[int, float]] = []
    for n, value in points:
        while len(hull) > 1 and _lies_below(hull[-2], hull[-1], n, value):
            hull.pop()
        hull.append((n, value))
    return hull


def _lies_below(before: tuple[int, float], corner: tuple[int, float], n: int, value: float) -> bool:
    """Whether ``corner`` is not above the line from the corner before to (n, value)."""
    return (corner[1] - before[1]) * (n - corner[0]) <= (value - corner[1]) * (corner[0] - before[0])
