"""The trainers of a pool: all of them, and those that may still get nodes, both in the order of submission."""

from __future__ import annotations

from pilot.core.commands import Outcome
from pilot.core.errors import InvariantError
from pilot.core.ids import TrainerId
from pilot.core.measured import Measured
from pilot.core.spec import TrainerSpec
from pilot.core.trainer import Trainer


class Roll:
    """``trainers`` is every trainer by its id, ``open`` those of them that have not ended and do not end."""

    def __init__(self, trainers: dict[TrainerId, Trainer]) -> None:
        self.trainers = trainers
        self.open = {trainer.id: trainer for trainer in trainers.values() if trainer.open}

    def submit(self, spec: TrainerSpec) -> None:
        """A new trainer, the last one."""
        if spec.trainer in self.trainers:
            raise InvariantError(f"trainer {spec.trainer} was submitted twice")
        trainer = Trainer(spec, Measured(spec), generation=spec.starts_after)
        self.trainers[spec.trainer] = self.open[spec.trainer] = trainer

    def close(self, trainer_id: TrainerId, outcome: Outcome, reason: str) -> Trainer | None:
        """It ends; None where it had ended before, or there is none."""
        trainer = self.open.pop(trainer_id, None)
        if trainer is not None:
            trainer.closing, trainer.reason = outcome, reason
        return trainer

    def resume(self, trainer_id: TrainerId) -> bool:
        """One that ended before its time goes on as the last one, what failed before forgotten; whether it does."""
        trainer = self.trainers.get(trainer_id)
        if trainer is None or trainer.outcome in (None, Outcome.FINISHED):
            return False
        trainer.reopen()
        self.trainers[trainer_id] = self.open[trainer_id] = self.trainers.pop(trainer_id)
        return True

    def remove(self, trainer_id: TrainerId) -> None:
        """One that has ended is forgotten."""
        trainer = self.trainers.get(trainer_id)
        if trainer is not None and trainer.outcome is not None:
            del self.trainers[trainer_id]

    def hold(self, trainer_id: TrainerId, reason: str) -> Trainer | None:
        """It gets no nodes for ``reason`` ("": it gets some again); None where that changes nothing."""
        trainer = self.open.get(trainer_id)
        if trainer is None or bool(trainer.held) == bool(reason):
            return None
        trainer.held = reason
        return trainer

    def admitted(self, most: int) -> list[Trainer]:
        """The first ``most`` that are open and not held (first come, first served, FreeTrain §5.2)."""
        waiting = (trainer for trainer in self.open.values() if not trainer.held)
        return [trainer for trainer, _ in zip(waiting, range(most), strict=False)]
