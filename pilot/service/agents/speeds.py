"""How fast the nodes of each group compute, from the times that their heartbeats carry."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pilot.core.coordinator import Coordinator
from pilot.core.events import SpeedsMeasured
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.protocol.fields import StepTimes

EVERY_S = 30.0
"""At most one event per trainer in this time."""

LEAST_S = 1e-6
"""A measurement of less time has no rate."""


@dataclass(slots=True)
class _Sums:
    """Samples and seconds of each member of a generation since ``since_s``, when the last event was made."""

    since_s: float = -math.inf
    generation: Generation | None = None
    nodes: dict[NodeId, tuple[int, float]] = field(default_factory=dict)


class SpeedMeter:
    """Sums the measurements of groups until all members have some."""

    def __init__(self, core: Coordinator) -> None:
        self._core = core
        self._sums: dict[TrainerId, _Sums] = {}

    def measured(self, now_s: float, node: NodeId, name: TrainerId, times: StepTimes) -> list[SpeedsMeasured]:
        """Take a measurement of ``node`` for the trainer ``name``; the event, if it is time for one."""
        group = self._core.trainers[name].group if name in self._core.trainers else None
        if group is None or node not in group.members or times.own_s < LEAST_S:
            return []
        sums = self._sums.setdefault(name, _Sums())
        if sums.generation != group.generation:
            sums.generation, sums.nodes = group.generation, {}
        samples, own_s = sums.nodes.get(node, (0, 0.0))
        sums.nodes[node] = samples + times.samples, own_s + times.own_s
        if now_s < sums.since_s + EVERY_S or len(sums.nodes) < len(group.members):
            return []
        self._sums = {known: each for known, each in self._sums.items() if known in self._core.trainers}
        self._sums[name] = _Sums(now_s)
        per_s = tuple((member, samples / own_s) for member, (samples, own_s) in sums.nodes.items())
        return [SpeedsMeasured(name, group.generation, per_s, times.equal_shares)]
