"""What trainers whose curves the core does not know report about themselves in a replay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from pilot.core.events import Progress
from pilot.core.ids import Generation, TrainerId
from pilot.core.profile import REPORTS
from pilot.core.trainer import Trainer
from pilot.sim.accounting import Account

EVERY_S = 4.0
"""So a rate that does not vary is known 20 s after its group formed and the pause is over: 20 steps of 0.8 s, and some
reports. Live reports come once a second."""


@dataclass(slots=True)
class Reports:
    """Each group reports its rate :data:`REPORTS` times, and further while it is profiled.

    ``noise`` : how far a report is off the true rate, one standard deviation of the logarithm, drawn by ``random``
    ``due`` : when the next report of a trainer comes, and how many still do; ``seen``: the newest groups
    """

    noise: float = 0.0
    random: Random = field(default_factory=Random)
    due: dict[TrainerId, tuple[float, int]] = field(default_factory=dict)
    seen: dict[TrainerId, Generation] = field(default_factory=dict)

    def expect(self, now_s: float, trainer: Trainer) -> None:
        """A group of ``trainer`` that is new will report when its pause is over."""
        group = trainer.group
        if group is not None and self.seen.get(trainer.id) != group.generation:
            self.seen[trainer.id] = group.generation
            self.due[trainer.id] = (now_s + trainer.spec.rescale_up_s + EVERY_S, REPORTS)

    def due_s(self) -> float:
        """When the next report comes."""
        return min((due_s for due_s, _ in self.due.values()), default=math.inf)

    def take(
        self, now_s: float, accounts: Mapping[TrainerId, Account], trainers: Mapping[TrainerId, Trainer]
    ) -> list[Progress]:
        """The reports that have come by ``now_s``."""
        told: list[Progress] = []
        for name in [name for name, (due_s, _) in self.due.items() if due_s <= now_s]:
            _, left = self.due.pop(name)
            trainer, account = trainers.get(name), accounts.get(name)
            if trainer is None or trainer.group is None or account is None or account.is_done():
                continue
            if left > 1 or trainer.profile.pin is not None:
                self.due[name] = (now_s + EVERY_S, left - 1)
            rate = account.curve.at(len(trainer.group.members)) * math.exp(self.random.gauss(0.0, self.noise))
            told.append(Progress(name, trainer.group.generation, 0, 0, int(account.done), rate))
        return told
