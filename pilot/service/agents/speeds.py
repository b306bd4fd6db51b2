"""How fast the nodes of each group compute, from the times that their heartbeats carry."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import is_rate
from pilot.core.events import SpeedsMeasured
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.protocol.fields import StepTimes

EVERY_S = 30.0
"""At most one event per trainer in this time."""


@dataclass(slots=True)
class _Sums:
    """Samples and seconds of each member of ``generation`` since ``since_s``, when the last event was made."""

    generation: Generation
    since_s: float
    nodes: dict[NodeId, tuple[int, float]] = field(default_factory=dict)


class SpeedMeter:
    """Sums the measurements of groups until all members have some."""

    def __init__(self, core: Coordinator) -> None:
        self._core = core
        self._sums: dict[TrainerId, _Sums] = {}

    def measured(self, now_s: float, node: NodeId, name: str, times: StepTimes) -> list[SpeedsMeasured]:
        """Take a measurement of ``node`` for the trainer ``name``; the event, if it is time for one."""
        trainer = self._core.trainers.get(TrainerId(name))
        group = trainer.group if trainer is not None else None
        if trainer is None or group is None or node not in group.members:
            return []
        sums = self._sums.get(trainer.id)
        if sums is None or sums.generation != group.generation:
            since_s = sums.since_s if sums is not None else -math.inf
            sums = self._sums[trainer.id] = _Sums(group.generation, since_s)
        samples, own_s = sums.nodes.get(node, (0, 0.0))
        sums.nodes[node] = samples + times.samples, own_s + times.own_s
        if now_s < sums.since_s + EVERY_S or len(sums.nodes) < len(group.members):
            return []
        self._sums = {known: each for known, each in self._sums.items() if known in self._core.trainers}
        self._sums[trainer.id] = _Sums(group.generation, now_s)
        rates = ((member, samples / own_s if own_s else 0.0) for member, (samples, own_s) in sums.nodes.items())
        per_s = tuple((member, rate) for member, rate in rates if rate and is_rate(rate))
        told = SpeedsMeasured(trainer.id, group.generation, per_s, times.equal_shares)
        return [told] if len(per_s) == len(group.members) else []
