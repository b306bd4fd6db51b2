"""A session's position, as seen by its loader; see :class:`pilot.train.data.training_loader.Course`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pilot.core.errors import UserError
from pilot.core.goal import EPOCH_SAMPLES
from pilot.train.data import rng
from pilot.train.data.rehearsal import Rehearsal
from pilot.train.data.sampler import StepShare, mix
from pilot.train.data.training_loader import Batches, Rest
from pilot.train.iterations import Turns
from pilot.train.ranks.collectives import Collectives
from pilot.train.ranks.group import RankGroup
from pilot.train.ranks.script_end import Released
from pilot.train.script import refusal
from pilot.train.state.state_check import StateCheck
from pilot.train.state.training import Training
from pilot.train.steps.guards import StepGuard
from pilot.train.steps.step import Step

_MORE = (
    "; to go over the samples without training on them (an accuracy, swa_utils.update_bn), use session.evaluate, or"
    " torch's DataLoader of the dataset"
)


class SessionCourse:
    """See the module.

    Parameters
    ----------
    seed : for the order of samples
    training, group, collectives, step, guard, check : the session's
    metrics : reported with the end; get the number of samples in an epoch
    """

    def __init__(
        self,
        seed: int,
        training: Training,
        group: RankGroup,
        collectives: Collectives,
        step: Step,
        guard: StepGuard,
        check: StateCheck,
        metrics: dict[str, float],
    ) -> None:
        self.seed = seed
        self._training = training
        self._group = group
        self._collectives = collectives
        self._step = step
        self._guard = guard
        self._check = check
        self._metrics = metrics
        self._ended: int | None = None
        self._passes = 0
        self._told = False
        self._turns: Turns | None = None

    def where(self) -> tuple[int, int, int, int, int]:
        """See :class:`~pilot.train.data.training_loader.Course`. In the middle of a step, the position of its
        beginning.
        """
        position = self._training.position
        if self._step.is_open:
            member, revision = self._step.member, self._step.revision
        else:
            self._group.settle()
            member = self._group.enter()
            position, revision = self._training.position, self._group.revision
        return position.epoch, position.cursor, member.rank, member.size, revision

    def rehearsal(self) -> Rehearsal | None:
        """See :class:`~pilot.train.data.training_loader.Course`."""
        return self._step.rehearsal

    def steps_done(self) -> int:
        """See :class:`~pilot.train.data.training_loader.Course`."""
        return self._training.position.epoch_steps

    def align(self) -> None:
        """See :class:`~pilot.train.data.training_loader.Course`. Ends the script if the others have stopped."""
        self._expect_loop()
        self._group.settle()
        self._training.trained.check_model()
        self._collectives.align()
        if self._training.position.stopped:
            self._collectives.leave()
            self._group.finish(self._metrics.copy)
            raise Released
        self._step.renew()

    def new_epoch(self) -> None:
        """The body of ``session.epochs`` begins."""
        self._collectives.arrive()
        self._collectives.scatter()
        self._ended, self._passes, self._guard.passing = None, 0, False

    def end_pass(self) -> None:
        """The body of ``session.epochs`` has ended, and its loop continues."""
        if self._guard.passing:
            raise UserError(
                "the loop over session.loader was left in the middle of an epoch, or before the loader's end (which"
                " `for batch in loader` reaches, and a range(len(loader)) does not), and session.epochs continues;"
                " nodes that join would leave it elsewhere. End training with session.stop(), count steps with"
                " session.iterations, and instead of a zip with a list take its items by the number of the batch"
                " (loader.enumerate())"
            )

    def by_iteration(self, batches: Batches) -> None:
        """The script counts iterations."""
        self._turns = Turns(batches, lambda: self._step.has_more)

    def new_turn(self) -> None:
        """The body of ``session.iterations`` begins."""
        self._collectives.arrive()
        self._ended, self._guard.passing = None, False
        if self._turns is not None:
            self._turns.begin()

    def end_turn(self) -> None:
        """The body has ended; if its step is void, it will be repeated (or another one is next, in a new group)."""
        if self._turns is not None:
            self._turns.end()
        if self.came_back_void():
            self._group.enter()

    def epoch_is_over(self) -> bool:
        """See :class:`~pilot.train.data.training_loader.Course`."""
        self._expect_loop()
        before = self.where()
        if before[0] == self._ended:
            raise UserError(
                f"the batches of epoch {before[0]} have all been used: an epoch is one pass over session.loader;"
                f" the next epoch begins with the next turn of session.epochs{_MORE}"
            )
        if not self._training.position.at_end:
            self.align()
        if self.where() != before:
            return False
        self._collectives.arrive()  # with a state taken over at the end of the epoch
        self._check.user()
        if self._turns is not None:  # nothing of the script is between its epochs
            if before[1] == 0:
                raise UserError("session.iterations: an epoch has no full step; use a smaller batch, or no drop_last")
            self._training.next_epoch({})
            self._collectives.arrive()
            return False
        self._training.reached_end()
        self._collectives.reached_end()
        self._ended, self._guard.passing = before[0], False
        if before[1] == 0 and not self._told:
            self._told = True
            refusal.note(
                f"epoch {before[0]} has no step, so nothing is trained in it: there are no samples, or fewer than a"
                " full step of this group takes, which drop_last leaves out; use a smaller batch, or no drop_last"
            )
        # Who joins or resumes here has not done the last step, in which an optimizer may draw.
        rng.seed_all(mix(self.seed, self._training.position.step, rng.OF_AN_END))
        return True

    def by_epoch(self) -> bool:
        """See :class:`~pilot.train.data.training_loader.Course`."""
        return self._turns is None

    def epoch_has(self, samples: int) -> None:
        """See :class:`~pilot.train.data.training_loader.Course`."""
        self._metrics[EPOCH_SAMPLES] = float(samples)  # needed to check the ledger

    def begin(self, share: StepShare, batch: int) -> None:
        """See :class:`~pilot.train.data.training_loader.Course`."""
        self._step.begin(share, batch)
        if batch == 0:
            self._check.before_step()

    def look_back(self, share: StepShare, batch: int) -> None:
        """See :class:`~pilot.train.data.training_loader.Course`."""
        self._step.begin(share, batch, counts=False)

    def came_back(self) -> None:
        """See :class:`~pilot.train.data.training_loader.Course`."""
        was_open = self._step.is_open
        self._step.came_back()
        if was_open and not self._step.is_open:  # otherwise it may have taken over a state to which it has not come yet
            self._collectives.arrive()

    def came_back_void(self) -> bool:
        """The same for a script that goes on before it takes a batch; returns whether that is the same one again: then
        what the script does until it has it is undone.
        """
        void = self._step.is_void
        self.came_back()
        if void:
            self._training.repeats()
        return void

    def stepped(self) -> None:
        """The script called ``session.step``."""
        if not self._step.is_open:
            self._collectives.arrive()
        if self._turns is not None:
            self._turns.stepped()

    def batches(self, rest: Rest) -> Iterator[Any]:
        """See :class:`~pilot.train.data.training_loader.Course`."""
        self._expect_loop()
        if self._turns is not None:
            return self._turns.batches(rest)
        self._passes += 1
        if self._passes > 1 and self._ended is None:
            raise UserError(
                "an epoch is one pass over session.loader, and this is a second one: keep using the first iterator, or"
                " take single batches with `for step in session.iterations(n): batch = loader.next()`"
            )
        return rest()

    def next_batch(self, rest: Rest) -> Any:
        """See :class:`~pilot.train.data.training_loader.Course`."""
        self._expect_loop()
        if self._turns is None:
            raise UserError("loader.next() is for session.iterations; in session.epochs use `for batch in loader:`")
        return self._turns.next(rest)

    def _expect_loop(self) -> None:
        if not self._guard.looping:
            raise UserError(
                "iterate over session.loader inside `for epoch in session.epochs(n):` (instead of"
                " range(n)) or `for step in session.iterations(n):`, which tell all nodes when an epoch begins and ends"
                f"{_MORE}"
            )
        self._guard.expect_own_thread()
        self._training.position.begun = True
