"""All looks at what the script keeps besides the session's state, and when they are taken."""

from __future__ import annotations

from pilot.train.data.sampler import Batching
from pilot.train.looks.built_in_forward import BuiltInForward
from pilot.train.looks.changed_in_forward import ChangedInForward
from pilot.train.looks.epoch_copies import EpochCopies
from pilot.train.looks.gradient_hooks import GradientHooks
from pilot.train.looks.loss_means import LossMeans
from pilot.train.looks.own_values import OwnValues
from pilot.train.looks.untracked import Untracked
from pilot.train.script.harmless import Harmless
from pilot.train.state.training import Training


class Looks:
    """Of one session. ``training``: what it knows."""

    def __init__(self, training: Training) -> None:
        self._untracked = Untracked(training)
        self._own = OwnValues(training)
        self._built = BuiltInForward(training)
        self._in_forward = ChangedInForward(training)
        self._hooks = GradientHooks(training)
        self._means = LossMeans(training)
        self._copies = EpochCopies(training, self._own.told_at_beginning)
        self._harmless = Harmless()

    def begin(self, dataset: object, collate_fn: object, batching: Batching | None, *, by_epoch: bool) -> None:
        """The session's loop begins, over epochs or iterations."""
        self._means.begin(batching)
        self._harmless.look(self._built.begin, lambda: self._own.begin(dataset, collate_fn, by_epoch=by_epoch))

    def epoch_begins(self) -> None:
        """The body of ``session.epochs`` begins."""
        self._harmless.look(self._copies.epoch_begins, self._own.epoch_begins)

    def pass_begins(self) -> None:
        """The loop over the loader begins."""
        self._harmless.look(self._copies.pass_begins, self._own.pass_begins)

    def pass_ends(self) -> None:
        """It ends."""
        self._harmless.look(self._own.pass_ends)

    def loss(self, loss: object, weight: object, samples: int) -> None:
        """The script gives a loss, with its weight, for a batch of so many samples."""
        self._harmless.look(lambda: self._means.look(loss, weight, samples))

    def step(self, samples: int) -> None:
        """The script steps for a batch of so many samples."""
        self._harmless.look(self._own.step, lambda: self._step(samples))

    def _step(self, samples: int) -> None:
        is_due = self._untracked.look()
        self._built.look(is_due=is_due)
        self._in_forward.look(is_due=is_due)
        if is_due:
            self._hooks.look()
            self._own.look(samples)

    def epoch_ends(self, samples: int) -> None:
        """The body of ``session.epochs`` ends; ``samples``: of the batch that it has, if any."""
        self._harmless.look(lambda: self._own.look(samples, at_end=True))

    def evaluation(self) -> None:
        """The script evaluates."""
        self._harmless.look(self._own.rank_only.check_evaluation)
