"""The trainers of a pool: all of them, and those that may still get nodes, both in the order of submission."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from pilot.core.commands import Outcome
from pilot.core.curves.measured import Measured
from pilot.core.curves.profile import Profile
from pilot.core.errors import InvariantError
from pilot.core.events import TrainerResumed
from pilot.core.ids import TrainerId
from pilot.core.trainer.budget import Usage, seconds
from pilot.core.trainer.proof import Proof
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Trainer


class Registry:
    """``trainers`` is every trainer by its id, ``open`` those that have not ended and are not ending, ``past`` the
    outcomes of those that are no longer kept."""

    def __init__(self, trainers: dict[TrainerId, Trainer], past: dict[TrainerId, Outcome]) -> None:
        self.trainers, self.past = trainers, past
        self.open = {trainer.id: trainer for trainer in trainers.values() if trainer.open}

    def submit(self, spec: TrainerSpec, charge_factor: float, now_s: float = 0.0) -> Trainer:
        """Add a new trainer, the last in order. Rates that it takes over from another one age until ``now_s``."""
        if spec.trainer in self.trainers or spec.trainer in self.past:
            raise InvariantError(f"trainer {spec.trainer} was submitted twice")
        usage = Usage(seconds(spec.budget_node_hours, charge_factor))
        spec = self._with_known_rates(spec, now_s)
        trainer = Trainer(spec, Measured(spec), generation=spec.starts_after, usage=usage)
        trainer.profile, trainer.proof = Profile.of(spec), Proof.of(spec)
        self.trainers[spec.trainer] = self.open[spec.trainer] = trainer
        return trainer

    def _with_known_rates(self, spec: TrainerSpec, now_s: float) -> TrainerSpec:
        """With the rates of the newest trainer of the same script that was measured on two counts or more, unless it
        has a curve or is to be measured itself."""
        if not spec.script or spec.reprofile or spec.curve is not None:
            return spec
        alike = (t for t in reversed(self.trainers.values()) if t.spec.script == spec.script)
        other = next((t for t in alike if t.measured.counts > 1), None)
        if other is None:
            return spec
        return replace(spec, known=other.measured.for_another(now_s), known_from=f"trainer {other.id}")

    def close(self, trainer_id: TrainerId, outcome: Outcome, reason: str) -> Trainer | None:
        """End a trainer; None if it had ended before, or does not exist."""
        trainer = self.open.pop(trainer_id, None)
        if trainer is not None:
            trainer.closing, trainer.reason = outcome, reason
        return trainer

    def resume(self, event: TrainerResumed, charge_factor: float) -> Trainer | None:
        """Reopen a trainer that failed or was cancelled, last in order and with its failures forgotten; None if it
        cannot be. From scratch, one that is held can be, too. One that is open may use types again on which it ran out
        of memory.
        """
        trainer = self.trainers.get(event.trainer)
        tries_types = trainer is not None and trainer.open and trainer.excluded and not event.from_scratch
        if trainer is None or not (tries_types or trainer.ended_early or (event.from_scratch and trainer.rests)):
            return None
        if event.budget_node_hours is not None:
            trainer.usage.allow(seconds(event.budget_node_hours, charge_factor))
        if tries_types:
            trainer.excluded = {}
            return trainer
        trainer.reopen()
        if event.from_scratch:
            trainer.given_up, trainer.saved_step = trainer.generation, 0
        self.open.pop(trainer.id, None)  # one that is held is still there, in its old place
        self.trainers[trainer.id] = self.open[trainer.id] = self.trainers.pop(trainer.id)
        return trainer

    def remove(self, trainer_id: TrainerId) -> None:
        """Forget a trainer that has ended."""
        self.past.pop(trainer_id, None)
        trainer = self.trainers.get(trainer_id)
        if trainer is not None and trainer.outcome is not None:
            del self.trainers[trainer_id]

    def forget_oldest(self, limit: int) -> None:
        """Keep only the last ``limit`` of the trainers that have ended; of the others, only the outcome."""
        ended = [trainer for trainer in self.trainers.values() if trainer.outcome is not None]
        for trainer in ended[: max(0, len(ended) - limit)]:
            assert trainer.outcome is not None
            self.past[trainer.id] = trainer.outcome
            del self.trainers[trainer.id]

    def hold(self, trainer_id: TrainerId, reason: str) -> Trainer | None:
        """Give a trainer no nodes, for ``reason`` ("": give it nodes again); None if that changes nothing."""
        trainer = self.open.get(trainer_id)
        if trainer is None or bool(trainer.held) == bool(reason) or trainer.stops:
            return None
        trainer.held = reason
        return trainer

    def stop(self, trainer: Trainer, reason: str) -> None:
        """Stop a trainer for ``reason``: it ends once its state is saved and none of its workers is left."""
        trainer.held, trainer.stops = reason, True

    def stopped(self, trainer: Trainer) -> bool:
        """Whether a trainer that was asked to stop has just ended."""
        return trainer.outcome is not None and self.open.pop(trainer.id, None) is not None

    def plannable(self) -> Iterator[Trainer]:
        """Those that are open and that plans may give nodes."""
        return (trainer for trainer in self.open.values() if trainer.plannable)

    def admitted(self, most: int, able: Callable[[Trainer], bool] = lambda _: True) -> list[Trainer]:
        """The first ``most`` plannable ones that are ``able`` (first come, first served, FreeTrain §5.2)."""
        return list(islice(filter(able, self.plannable()), most))

    def ahead(self, most: int, able: Callable[[Trainer], bool] = lambda _: True) -> list[Trainer]:
        """The first ``most`` that could be admitted, and those behind them that hold nodes."""
        there = list(filter(able, self.plannable()))
        return there[:most] + [trainer for trainer in there[most:] if trainer.target]

    def queued(self, admitted: Sequence[Trainer]) -> list[Trainer]:
        """Those that could be admitted, but are not among ``admitted``."""
        names = {trainer.id for trainer in admitted}
        return [trainer for trainer in self.plannable() if trainer.id not in names]
