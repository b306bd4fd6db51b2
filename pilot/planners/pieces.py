"""A candidate's gain as linear pieces over whole node counts."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from pilot.core.problem import Candidate, Problem

NO_GAIN = 1e-200
"""Gains below this do not count, so that scales stay finite."""


@dataclass(frozen=True, slots=True)
class LinearPiece:
    """Counts ``first`` to ``last``, on which eq. 16's term is ``gain + slope * (n - first)``, exact at each count.

    ``late``: this many ending nodes come on top of each.
    """

    first: int
    last: int
    gain: float
    slope: float
    late: int = 0


def pieces(candidate: Candidate, t_fwd_s: float, nodes: int) -> list[LinearPiece]:
    """The pieces that cover each count from ``min_nodes`` to ``max_nodes`` (at most ``nodes``) once, in order.

    They end where the scaling curve bends and on both sides of C_j, where the cost of a rescale begins. A curve may
    bend between two counts: a piece then ends at the count before, or holds just these two. Where only some sizes are
    allowed, each is a piece.
    """
    if candidate.sizes:
        return [
            LinearPiece(n, n, candidate.gain(n, t_fwd_s), 0.0) for n in candidate.sizes if n <= _most(candidate, nodes)
        ]
    found: list[LinearPiece] = []
    first, largest = candidate.min_nodes, _most(candidate, nodes)
    while first <= largest:
        last = min(_linear_until(candidate, first, largest), largest)
        gain = candidate.gain(first, t_fwd_s)
        slope = (candidate.gain(last, t_fwd_s) - gain) / max(1, last - first)
        found.append(LinearPiece(first, last, gain, slope))
        first = last + 1
    return found


def late_pieces(candidate: Candidate, problem: Problem) -> list[LinearPiece]:
    """The pieces with some of the problem's ending nodes; they end where the curve bends with them or without."""
    c, found = candidate, list[LinearPiece]()
    for late in range(1, problem.ending + 1):
        tried = (0, *range(c.min_nodes, _most(c, problem.nodes) + 1))
        stays = [n for n in tried if n >= c.current_nodes and c.allows(n) and c.allows(n + late)]
        bends = {whole - more for n in c.value.nodes for whole in (math.floor(n), math.ceil(n)) for more in (0, late)}
        while stays:
            length = next((i for i, n in enumerate(stays) if i and (n in bends or n > stays[i - 1] + 1)), len(stays))
            first, last = stays[0], stays[length - 1]
            gain = problem.gain(c, first + late, late)
            slope = (problem.gain(c, last + late, late) - gain) / max(1, last - first)
            found.append(LinearPiece(first, last, gain, slope, late))
            stays = stays[length:]
    return found


def _most(candidate: Candidate, nodes: int) -> int:
    return min(candidate.max_nodes, nodes)


def _linear_until(candidate: Candidate, first: int, largest: int) -> int:
    """Up to which count the gain is linear from ``first`` on."""
    if first == candidate.current_nodes:
        return first
    bends = candidate.value.nodes
    after = bisect_right(bends, first)
    last = max(first + 1, math.floor(bends[after])) if after < len(bends) else largest
    return min(last, candidate.current_nodes - 1) if first < candidate.current_nodes else last
