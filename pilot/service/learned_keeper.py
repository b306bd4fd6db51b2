"""Decides which of a pool's measurements to store for later pools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pilot.core.ids import TrainerUid
from pilot.core.trainer import Trainer
from pilot.io.learned import Learned, Measurement, measurement


@dataclass(slots=True)
class LearnedKeeper:
    """``kept``: on how many node counts each trainer was measured and whether it had ended, when last written."""

    learned: Learned
    kept: dict[TrainerUid, tuple[int, bool]] = field(default_factory=dict)

    def news(self, trainers: Iterable[Trainer]) -> list[tuple[TrainerUid, Measurement]]:
        """Of ``trainers`` measured on two node counts or more: those with a new count, and those that have ended
        since."""
        found = []
        for trainer in trainers:
            points, uid = trainer.measured.points, trainer.spec.uid
            state = len(points), trainer.outcome is not None
            if len(points) > 1 and trainer.spec.script and self.kept.get(uid) != state:
                self.kept[uid] = state
                found.append((uid, measurement(trainer.spec, points)))
        return found

    def write(self, news: Sequence[tuple[TrainerUid, Measurement]]) -> None:
        """Write them; in a thread."""
        self.learned.write(news)
