"""Trainers that arrive close together are planned for together (a batch of new jobs, MalleTrain §3.2).

Otherwise each of ten submissions would cause its own plan: the first trainer gets all of the pool, and nine times most
of its workers are stopped again before they have trained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pilot.core.ids import TrainerId

ARRIVALS_S = 2.0
"""Trainers submitted within this time of one another are a batch."""

BATCHES_LONGEST = 5
"""A batch is closed after this many times ``ARRIVALS_S``, even if trainers keep arriving."""


@dataclass(slots=True)
class Arrivals:
    """The open batch: its ``trainers``, of which the first arrived at ``first_s`` and the last at ``last_s``."""

    trainers: list[TrainerId] = field(default_factory=list)
    first_s: float = 0.0
    last_s: float = 0.0

    def note(self, now_s: float, trainer: TrainerId) -> None:
        """Add a trainer that arrived and could be given nodes."""
        if not self.trainers:
            self.first_s = now_s
        self.trainers.append(trainer)
        self.last_s = now_s

    def due_s(self, within_s: float) -> float:
        """When the batch closes if no other trainer arrives; trainers that arrive within ``within_s`` of one another
        are a batch.
        """
        if not self.trainers:
            return math.inf
        return min(self.last_s + within_s, self.first_s + BATCHES_LONGEST * within_s)

    def close(self) -> str:
        """Close the batch; returns why another plan is needed ("": no arrival is still waiting for one)."""
        came, self.trainers = self.trainers, []
        if len(came) < 2:
            return f"trainer {came[0]} arrived" if came else ""
        return f"{len(came)} trainers arrived"
