"""Which of a pool's measurements are to be kept for later pools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pilot.core.ids import TrainerUid
from pilot.core.trainer import Trainer
from pilot.io.learned import Learned, Measurement, measurement


@dataclass(slots=True)
class LearnedKeeper:
    """``kept``: on how many counts each trainer was measured and whether it had ended, when it was last written."""

    learned: Learned
    kept: dict[TrainerUid, tuple[int, bool]] = field(default_factory=dict)

    def news(self, trainers: Iterable[Trainer]) -> list[tuple[TrainerUid, Measurement]]:
        """Of the ``trainers`` that were measured on two counts or more, those with another count or at their end."""
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
