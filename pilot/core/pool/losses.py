"""How often trainers lose nodes, as far as the pool has seen it, for planners that count preemptions.

Free nodes that leave do not count: surplus pilots are cancelled.

Neighbours often leave together, so a trainer is hit less often than its nodes would be one by one. There are two
rates: of nodes, per node and second, and of events that take any nodes, per second. A trainer on n nodes is hit n times
the former per second, and no more often than the latter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MEMORY_S = 3600.0
"""A loss this long ago counts 1/e."""


@dataclass(frozen=True, slots=True)
class LossRate:
    """``nodes_per_node_s``: nodes lost per node and second; ``events_per_s``: how often any are lost, per second.

    0 if nothing has been lost yet.
    """

    nodes_per_node_s: float = 0.0
    events_per_s: float = 0.0

    def hits_per_s(self, nodes: int) -> float:
        """How often per second a trainer on ``nodes`` nodes is expected to lose some of them."""
        return min(nodes * self.nodes_per_node_s, self.events_per_s)


NO_LOSS = LossRate()


@dataclass(slots=True)
class Losses:
    """Losses, and the time in which they happened, until ``since_s``; ``nodes`` nodes are held since then.

    ``node_s`` and ``pool_s`` are node-seconds, and seconds with any node; ``lost`` and ``events`` are the nodes that
    trainers lost, and how many times they did. All four decay alike (:data:`MEMORY_S`).
    """

    nodes: int = 0
    since_s: float = 0.0
    node_s: float = 0.0
    pool_s: float = 0.0
    lost: float = 0.0
    events: float = 0.0

    def note(self, now_s: float, nodes: int, lost: int = 0) -> None:
        """There are ``nodes`` nodes from ``now_s`` on; trainers have just lost ``lost``."""
        share = math.exp(-(now_s - self.since_s) / MEMORY_S)
        time_s = MEMORY_S * (1.0 - share)
        self.node_s = self.node_s * share + self.nodes * time_s
        self.pool_s = self.pool_s * share + (time_s if self.nodes else 0.0)
        self.lost = self.lost * share + lost
        self.events = self.events * share + (1 if lost else 0)
        self.nodes, self.since_s = nodes, now_s

    @property
    def rate(self) -> LossRate:
        """The rates so far."""
        if not self.node_s:
            return NO_LOSS
        return LossRate(self.lost / self.node_s, self.events / self.pool_s)
