"""The rate of a trainer on nodes of several types, from its scaling curve on nodes of its reference type.

A node of type k computes ``s_k`` times as fast as one of the reference type. If the shares of a step's samples even out
the times, n nodes compute as fast as ``e`` nodes of the reference type, the sum of their speeds; what the nodes
exchange depends on n. With O(n) for the reference type, the time per sample on n nodes is 1/O(n), of which 1/(n O(1))
is computing::

    1/rate = 1/O(n) + (1/e - 1/n) / O(1)

If O(n) / n is higher than O(1), it stands for that: then computing takes all of the time.
If all shares are equal, the slowest node decides: ``e`` is n times its speed.
"""

from __future__ import annotations

from pilot.core.curves.curve import Curve


def mixed_rate(curve: Curve, nodes: int, effective: float) -> float:
    """The rate on ``nodes`` nodes that compute as fast as ``effective`` nodes of the reference type (0: none)."""
    if nodes <= 0 or effective <= 0 or (there := curve.at(nodes)) <= 0:
        return 0.0
    return 1.0 / (1.0 / there + (1.0 / effective - 1.0 / nodes) / max(curve.at(1), there / nodes))


def reference_rate(rate: float, nodes: int, effective: float, alone: float | None = None) -> float:
    """The rate on ``nodes`` nodes of the reference type if it is ``rate`` where they compute as fast as ``effective``:
    the inverse of :func:`mixed_rate`.

    ``alone``: the rate on one node of the reference type; None: not known, then all of the time counts as computing.
    """
    proportional = rate * nodes / effective
    if alone is None or nodes == 1:
        return proportional
    left = 1.0 / rate - (1.0 / effective - 1.0 / nodes) / max(alone, rate / effective)
    return 1.0 / left if left > 0 else proportional
