"""Planner ``flotilla``: trainers that train together at one pace (FLEET's Algorithm 1, ``createFlotilla``).

The trainer that is fastest on its smallest size, one node for most, sets the pace. Then the trainer that can come
nearest to that pace joins, on as many nodes as that takes, as long as nodes are left; remaining nodes go to the slowest
member, repeatedly. A trainer that does not join gets nothing until a member has ended. Rates are values of the
objective: samples per second under ``throughput``, the default with this planner.

The paper's appendix does not specify ``findNext``, and has no sizes. Ours:

- Next is the trainer and count whose rate differs least from the pace; of equals the one with fewer nodes, then the
  one submitted first.
- A trainer keeps to its sizes. The slowest grows to its next size. Where that is not free, or would not make it
  faster, the next slowest does; if none can, nodes stay idle.

As in the paper, the cost of rescales plays no part.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem
from pilot.planners.choice import plan_of


@dataclass(frozen=True, slots=True)
class _Trainer:
    """Number ``place`` in the order of submission. It can have ``counts`` of nodes (rising), with these ``rates``."""

    place: int
    counts: list[int]
    rates: list[float]

    def nearest(self, pace: float, room: int) -> tuple[float, int]:
        """(how far its rate is from ``pace``, count), of the counts within ``room``; there is one."""
        within = range(bisect_right(self.counts, room))
        return min((abs(self.rates[i] - pace), self.counts[i]) for i in within)

    def rate(self, count: int) -> float:
        return self.rates[self.counts.index(count)]

    def grown(self, count: int, room: int) -> int | None:
        """Its next count, if that is within ``room`` more nodes and faster."""
        place = self.counts.index(count)
        if place + 1 == len(self.counts) or self.counts[place + 1] - count > room:
            return None
        return self.counts[place + 1] if self.rates[place + 1] > self.rates[place] else None


def plan(problem: Problem, limit_s: float = math.inf) -> Plan:  # noqa: ARG001  # the planners' signature
    """The flotilla; its distance from the optimum of eq. 16 is not known."""
    return plan_of(problem, flotilla(problem), PlanStatus.INCUMBENT, None, "flotilla")


def flotilla(problem: Problem) -> list[int]:
    """Node counts in the candidates' order, 0 for those that do not join. They respect all sizes and the capacity."""
    trainers = [_trainer(place, c, problem.nodes) for place, c in enumerate(problem.candidates)]
    counts = [0] * len(trainers)
    left = _join([t for t in trainers if t.counts], counts, problem.nodes)
    _grow([t for t in trainers if counts[t.place]], counts, left)
    return counts


def _trainer(place: int, candidate: Candidate, nodes: int) -> _Trainer:
    most = min(candidate.max_nodes, nodes)
    counts = [count for count in range(candidate.min_nodes, most + 1) if candidate.allows(count)]
    return _Trainer(place, counts, [candidate.value_at(count) for count in counts])


def _join(waiting: list[_Trainer], counts: list[int], room: int) -> int:
    """Give each that joins its first count (lines 1 to 11); the nodes that are left."""
    if not waiting:
        return room
    fastest = max(waiting, key=lambda t: (t.rates[0], -t.place))
    pace, joins, count = fastest.rates[0], fastest, fastest.counts[0]
    near: dict[int, tuple[float, int]] = {}
    while True:
        counts[joins.place] = count
        room -= count
        waiting = [t for t in waiting if t is not joins and t.counts[0] <= room]
        if not waiting:
            return room
        for trainer in waiting:
            if trainer.place not in near or near[trainer.place][1] > room:
                near[trainer.place] = trainer.nearest(pace, room)
        joins = min(waiting, key=lambda t: (*near[t.place], t.place))
        count = near[joins.place][1]


def _grow(members: Sequence[_Trainer], counts: list[int], room: int) -> None:
    """Give ``room`` more nodes to the slowest of the ``members`` (lines 12 to 16)."""
    growing = [(t.rate(counts[t.place]), t.place, t) for t in members]
    heapq.heapify(growing)
    while growing:
        _, place, trainer = growing[0]
        count = trainer.grown(counts[place], room)
        if count is None:
            heapq.heappop(growing)
            continue
        room -= count - counts[place]
        counts[place] = count
        heapq.heapreplace(growing, (trainer.rate(count), place, trainer))
