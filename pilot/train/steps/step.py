"""The current step: the gradients of a batch are summed over the group, and the optimizers are stepped.

A step has one *phase*, in which all optimizers are stepped together; or, if they are stepped by name, one phase per
optimizer that the script steps for the batch. It ends when the script asks for the next batch. If the group breaks in a
phase, the batch runs again: optimizers that were stepped are not stepped again, and the script's other changes are
rolled back (:mod:`pilot.train.steps.rollback`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch

from pilot.core.errors import UserError
from pilot.train.data import rng
from pilot.train.data.rehearsal import Rehearsal
from pilot.train.data.sampler import StepShare, mix
from pilot.train.gradients.exchanges import Exchanges
from pilot.train.gradients.step_words import Words
from pilot.train.metric_log import MetricLog
from pilot.train.node.membership import Membership
from pilot.train.node.node_ties import NodeTies
from pilot.train.ranks.group import RankGroup
from pilot.train.state.session_checks import single
from pilot.train.state.state_transfer import Standing
from pilot.train.state.stepper import Stepper
from pilot.train.state.training import Training
from pilot.train.steps.alarm import Alarm
from pilot.train.steps.comparison import Comparison
from pilot.train.steps.guards import StepGuard
from pilot.train.steps.rollback import Rollback
from pilot.train.steps.sums import StepSums
from pilot.train.steps.weights import Weights

Number = torch.Tensor | float | None


class Step:
    """One rank's steps, one after the other.

    ``rehearsal``: of the group's first step, after which ``rehearsed`` is called; ``uncertain``: the ranks that take
    part in it without having been compared; ``revision``: of the group when the step began.

    Parameters
    ----------
    seed : seed of the ranks' random generators
    metrics : gets the measurements of each step
    ties : to the other processes of the node
    """

    def __init__(
        self,
        training: Training,
        group: RankGroup,
        exchanges: Exchanges,
        guard: StepGuard,
        rollback: Rollback,
        seed: int,
        metrics: dict[str, float],
        ties: NodeTies,
    ) -> None:
        self._training = training
        self._group = group
        self._exchanges = exchanges
        self._guard = guard
        guard.backward_ended = exchanges.backward_ended
        self._rollback = rollback
        self._seed = seed
        self._metrics = metrics
        self._of_step: dict[str, float] = {}
        self._by_name = training.steppers.by_name
        self._alarm = Alarm(training, ties)
        self.rehearsal: Rehearsal | None = None
        self.rehearsed: Callable[[], None] = lambda: None
        self.uncertain: Collection[int] = ()
        self._comparison = Comparison(training)
        self._share: StepShare | None = None
        self._member: Membership | None = None
        self.revision = 0
        self._batch = 0
        self._trains_others = False
        self._stepped = True  # the batch had its session.step
        self._void = False
        self._counts = True
        self._phases = 0
        self._counted: list[Stepper] | None = None
        self._sums: Words | None = None
        self._words: Words | None = None
        self._loss: float | torch.Tensor = 0.0
        self.logs: list[MetricLog] = []
        self._weights = Weights(together=not self._by_name)
        self.max_norm: float | None = None
        self.summing = StepSums(training, group, exchanges, self._alarm, self._comparison, self._weights)

    @property
    def is_open(self) -> bool:
        """Whether the script is in the middle of a step."""
        return self._share is not None

    @property
    def has_more(self) -> bool:
        """Whether the current step has more batches for this rank."""
        return self._share is not None and self._batch + 1 < len(self._share.batches)

    @property
    def samples(self) -> int:
        """The number of samples of the script's batch, before its ``session.step``; 0 after it."""
        start, stop = (0, 0) if self._share is None or self._stepped else self._share.batches[self._batch]
        return stop - start

    @property
    def samples_of_all(self) -> int:
        """The number of the step's samples on all ranks; 0 between steps."""
        return self._share.total if self._share is not None else 0

    @property
    def has_stepped(self) -> bool:
        """Whether an optimizer was stepped for this batch, so that others may follow."""
        return self._share is not None and self._phases > 0

    @property
    def is_void(self) -> bool:
        """Whether the group broke in this step, while the script is still busy with its batch."""
        return self._share is not None and self._void and self._counts

    @property
    def member(self) -> Membership:
        """The membership of the current step, even if its group is gone; between steps that of the group in force."""
        return self._member or self._group.enter()

    def trains_on(self, dataset: object) -> None:
        """Set the dataset from which the loader takes samples."""
        self._alarm.replicated.trains_on(dataset)

    def renew(self) -> None:
        """Exchange other parameters from now on if these are trained; called on all ranks, between the same steps."""
        if self._exchanges.renew():
            self._group.attach()
            self._rollback.reset()
            self._trains_others = True

    def begin(self, share: StepShare, batch: int, *, counts: bool = True) -> None:
        """Begin micro-batch ``batch`` of ``share``. A step that does not count is void from its beginning, and the
        other ranks do not know about it.
        """
        if not self._stepped:
            raise UserError(_NO_STEP)
        if batch == 0:
            self._rollback.begin()
            self._member, self.revision = self._group.enter(), self._group.revision
            self._weights.begin(self._training.position.weight, share)
            self._void, self._phases, self._loss, self.max_norm, self._words = not counts, 0, 0.0, None, None
            self._counts = counts
            if not counts:
                self._rollback.hold()
            elif self._again:
                self._rollback.repeats(0)
        group, rehearsal = self.member, self.rehearsal if counts else None
        # Per micro-batch, so that the loading of samples does not affect the model's random numbers.
        position = self._training.position
        # In rounds nodes do the same number of steps, with other samples.
        number = position.step if self._training.outer is None else mix(position.epoch, share.cursor)
        rng.seed_all(mix(self._seed, number, self._draws_as, *([batch] if batch else [])))
        self._share, self._batch, self._stepped, self._counted = share, batch, False, None
        self._guard.passing = True
        self._alarm.replicated.forward_begins()
        if batch == 0:
            alone = not counts or group.size == len(share.batches) == 1
            ring = self._group.ring if counts else lambda: None
            self._comparison.begins(rehearsal, group.rank)
            if counts:
                bounds = self._training.shares.bounds(self._training.position.step, rehearsal)
                self._group.next_steps.begins(share, group.rank, self._parts, bounds)
            for exchange in self._exchanges.each:
                exchange.begin(ring, alone=alone, held=self._held, sketch=self._comparison.sketch)
        self._comparison.weighs(self.samples)
        self._group.next_steps.forward_begins()
        for exchange in self._exchanges.each:
            exchange.begin_batch(share.weight(batch), last=batch + 1 == len(share.batches))

    def end_batch(self) -> None:
        """End the batch: undo a void step, or close the step if its optimizers are stepped by name."""
        if self._share is None or not self._stepped:
            return
        if self._void:
            self._rollback.back()
            self._share = self._member = None
            if not self._counts:
                self._rollback.reset()
        elif not self._by_name:
            return
        elif self._phases < self._training.position.phase:
            raise UserError(
                "the script stepped fewer optimizers for this batch than it did before a node was lost: choose"
                " them only by values that are the same on all ranks (session.steps, session.state)"
            )
        else:
            self._close(self._share)

    def sum(self, loss: Number, name: str | None, weight: Number) -> bool:
        """See :meth:`Session.sum <pilot.train.session.Session.sum>`."""
        share = self._expect_batch()
        if self._counted is None:
            self._count(share, loss, name, weight)
        if self._again:
            self._void_gradients(self._counted or [])
        elif self._sums is None and not self.has_more:
            self._give_up()
        elif not self.has_more:
            self._guard.summed = self._exchanges.parameters(self._counted or [])
        return self._sums is not None

    def step(self, loss: Number, name: str | None, weight: Number) -> bool:
        """See :meth:`Session.step <pilot.train.session.Session.step>`."""
        share = self._expect_batch()
        if self._counted is None:
            self._count(share, loss, name, weight)
        elif (
            loss is not None
            or weight is not None
            or (name is not None and self._counted != self._training.steppers.named(name))
        ):
            raise UserError("pass loss, weight and name to session.sum, and then call session.step() without them")
        steppers, self._counted, self._stepped = self._counted or [], None, True
        self._guard.summed = ()
        if self.has_more:
            for exchange in self._exchanges.each:
                exchange.batch_ends()
            return False
        words, self._sums = self._sums, None
        if self._again:
            return self._pass_over(steppers)
        if words is None:
            self._give_up()
            return False
        self._apply(steppers, words, share)
        if not self._by_name:
            self._close(share)
        return True

    @property
    def _again(self) -> bool:
        """Whether this phase was completed before the group broke."""
        return self._phases < self._training.position.phase and not self._void

    @property
    def _parts(self) -> int:
        """The number of ranks among which the step's samples are divided."""
        return self.member.size if self.rehearsal is None else self.rehearsal.parts

    @property
    def _draws_as(self) -> int:
        """The rank whose random numbers this one draws."""
        rank = self.member.rank
        return self.rehearsal.stands_for(rank) if self.rehearsal is not None and self._counts else rank

    @property
    def _held(self) -> bool:
        """Whether the weights of gradients are known only after backward."""
        return self._weights.possible and self._training.sharding is None

    def _expect_batch(self) -> StepShare:
        if self._share is None or (self._stepped and not self._by_name):
            raise UserError(
                "session.step needs a batch of session.loader, and each batch needs one session.step; to step several"
                " times for a batch, give pilot.train.session a dict of the optimizers, by name"
            )
        return self._share

    def _count(self, share: StepShare, loss: Number, name: str | None, weight: Number) -> None:
        """Count the batch, and sum gradients over the group after the step's last batch."""
        self._counted = steppers = self._training.steppers.named(name)
        self._alarm.replicated.forward_ended()
        self._group.next_steps.forward_ends()
        if weight is not None and self._training.sharding is not None:
            raise UserError(
                "session.step: weight= cannot be combined with a sharded model, whose gradients are averaged in"
                " backward; make the loss a mean over the batch's samples"
            )
        factor = self._weights.factor(self._batch, weight)
        if weight is not None:
            self._comparison.weighs(weight)
        if self._held:
            for exchange in self._exchanges.each:
                exchange.release(factor)
        if loss is not None and factor:
            self._loss = self._loss + factor * single(loss)
        if self.has_more:
            return
        if self._counts:
            self._training.trained.check_step()
        if not self._again and not self._void:
            self._rollback.note_changes()
            self._sums = self.summing.sum(steppers, share, self.member, self.rehearsal, self._loss)
            if self._sums is not None:  # now all ranks draw the same numbers: noise on the sums, or in an optimizer
                step, phase = self._training.position.step, self._phases
                rng.seed_all(mix(self._seed, step, phase, rng.OF_ALL_RANKS))
        self._loss = 0.0

    def _apply(self, steppers: list[Stepper], words: Words, share: StepShare) -> None:
        if self.max_norm is not None:
            self._of_step["grad_norm"] = self._training.clip(self.max_norm, steppers)
            self.max_norm = None
        if self._trains_others and not self._by_name:
            self._training.trained.check_frozen()
            self._trains_others = False
        with self._guard.session_steps():
            self._training.apply_phase(steppers, share)
        self._training.position.weight = words.weight
        self._training.position.stopped |= words.stop > 0
        label = "_".join(["loss", *(stepper.name for stepper in steppers if stepper.name)])
        self._of_step |= {label: words.loss} | self._training.metrics()
        self._metrics |= self._of_step
        self._words = words
        if self._by_name:
            self._rollback.phase_ends()
        self._passed(steppers)

    def _pass_over(self, steppers: list[Stepper]) -> bool:
        """Skip the steps of a phase that was done before and still counts."""
        self._void_gradients(steppers)
        self._rollback.back()
        self._rollback.mark()
        self._passed(steppers)
        if self._again:
            self._rollback.repeats(self._phases)
        return True

    def _void_gradients(self, steppers: Sequence[Stepper]) -> None:
        for stepper in steppers:
            self._exchanges.each[self._exchanges.number(stepper)].void_gradients()

    def _passed(self, steppers: list[Stepper]) -> None:
        self._phases += 1
        if self._by_name:
            self._exchanges.only(steppers)
            # For the next optimizer's loss, each rank draws its own numbers again.
            rng.seed_all(mix(self._seed, self._training.position.step, self._draws_as, self._phases))

    def _give_up(self) -> None:
        """Make the step void, because the group broke. The script continues with the present values, from which its
        graphs were built, until it gets the batch again.
        """
        for exchange in self._exchanges.each:
            exchange.drop()
        if not self._void:
            self._void = True
            self._rollback.hold()

    def _close(self, share: StepShare) -> None:
        self._group.next_steps.ends()
        self._training.close(self.member.generation, share)
        is_certain = self.member.rank not in self.uncertain
        self._training.standing = Standing.COMPARED if is_certain else Standing.NOT_COMPARED
        self._training.position.parts = self._parts
        if self.rehearsal is not None:
            self.rehearsal = None
            self.rehearsed()
        if self._words is not None:
            self._training.shares.stepped(self._training.position.step - 1, share.total, self._words.times)
            self._group.applied(self._words, share, lambda: dict(self._metrics))
        for log in self.logs:
            log.stepped(self._group.everyone(self.member), self._training.position.step, self._of_step)
        self._of_step = {}
        self._share = self._member = None


_NO_STEP = (
    "the script took a batch from session.loader without calling session.step for the previous one: call it for each;"
    " to accumulate gradients use session.loader(..., micro_batch_size=), to load ahead num_workers=, and to leave a"
    " batch out session.step(weight=0) (and weight= in every step)"
)
