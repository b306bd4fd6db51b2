"""How far a session is, as its loader sees it; see :class:`pilot.train.loader.Course`."""

from __future__ import annotations

from collections.abc import Callable

from pilot.core.errors import UserError
from pilot.train.collectives import Collectives
from pilot.train.group import RankGroup
from pilot.train.guards import StepGuard
from pilot.train.sampler import StepShare
from pilot.train.script_end import Released
from pilot.train.state_check import StateCheck
from pilot.train.step import Step
from pilot.train.training import Training

Metrics = Callable[[], dict[str, float]]


class SessionCourse:
    """See the module.

    Parameters
    ----------
    seed : of the order of samples
    training, group, collectives, step, guard, check : of the session
    metrics : what is reported with the end
    has : called with the number of an epoch's samples
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
        metrics: Metrics,
        has: Callable[[int], None],
    ) -> None:
        self.seed = seed
        self._training = training
        self._group = group
        self._collectives = collectives
        self._step = step
        self._guard = guard
        self._check = check
        self._metrics = metrics
        self._has = has
        self._ended: int | None = None

    def where(self) -> tuple[int, int, int, int, int]:
        """See :class:`~pilot.train.loader.Course`. In the middle of a step that is its beginning."""
        position = self._training.position
        if self._step.is_open:
            member, revision = self._step.member, self._step.revision
        else:
            self._group.settle()
            member = self._group.enter()
            position, revision = self._training.position, self._group.revision
        return position.epoch, position.cursor, member.rank, member.size, revision

    def align(self) -> None:
        """See :class:`~pilot.train.loader.Course`. Ends the script where the others have stopped."""
        self._expect_loop()
        self._group.settle()
        self._training.trained.check_model()
        self._collectives.align()
        if self._training.position.stopped:
            self._group.finish(self._metrics)
            raise Released
        self._step.renew()

    def new_epoch(self) -> None:
        """The body of ``session.epochs`` begins."""
        self._collectives.here()
        self._collectives.scatter()
        self._ended, self._guard.passing = None, False

    def epoch_is_over(self) -> bool:
        """See :class:`~pilot.train.loader.Course`."""
        self._expect_loop()
        before = self.where()
        if before[0] == self._ended:
            raise UserError(
                f"the batches of epoch {before[0]} are over: an epoch has one pass over session.loader; the next begins"
                " with the next turn of session.epochs"
            )
        if not self._training.position.at_end:
            self.align()
        if self.where() != before:
            return False
        self._check.user()
        self._training.reached_end()
        self._ended, self._guard.passing = before[0], False
        return True

    def epoch_has(self, samples: int) -> None:
        """See :class:`~pilot.train.loader.Course`."""
        self._has(samples)

    def begin(self, share: StepShare, batch: int) -> None:
        """See :class:`~pilot.train.loader.Course`."""
        self._step.begin(share, batch)
        if batch == 0:
            self._check.before_step()

    def came_back(self) -> None:
        """See :class:`~pilot.train.loader.Course`."""
        self._step.came_back()
        if not self._step.is_open:
            self._collectives.here()

    def _expect_loop(self) -> None:
        if not self._guard.looping:
            raise UserError(
                "batches of session.loader are taken in the body of `for epoch in session.epochs(n):` (in place of"
                " range(n)): it says when all nodes begin and end an epoch"
            )
