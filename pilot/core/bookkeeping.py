"""Events of trainers, and the commands that follow for each: the coordinator without its plans.

:mod:`pilot.core.trainer.transitions` records what happens to one trainer, :mod:`pilot.core.pool.blame` judges whose
fault a failure is. Then :mod:`pilot.core.trainer.reconcile`, a table of rules, brings each trainer that the event
touched from where it is to its target. Losses do not wait for a plan: survivors regroup at once.

A loss, a notice or a failure that hits a *forming* group gives up the training group, too, because its ranks may
already have agreed on the switch, and only they know. Survivors hold their state and the next group starts from it, so
this costs a moment but never a step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import fields

from pilot.core import events
from pilot.core.commands import CloseTrainer, Command, HoldTrainer, Outcome
from pilot.core.config import CoordinatorConfig, State
from pilot.core.curves import profiles
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.assign import give_back, start_on
from pilot.core.pool.blame import Blame
from pilot.core.pool.evidence import Stage
from pilot.core.pool.pool import ExpiringNodes, Pool, all_end_s, ending
from pilot.core.study.studies import Followed, Studies
from pilot.core.trainer.actions import DRAIN_LEAST_S, cut_short, dissolve, hasten
from pilot.core.trainer.budget import Usage, seconds
from pilot.core.trainer.checkpoint_interval import CheckpointInterval, adjust_interval
from pilot.core.trainer.reconcile import reconcile
from pilot.core.trainer.registry import Registry
from pilot.core.trainer.trainer import Trainer
from pilot.core.trainer.transitions import note


class Bookkeeping(State):
    """The trainers of a pool, in the order of submission, and their commands.

    ``replan``: why the event makes another plan necessary ("": it does not). ``touched``: the trainers that it affects,
    and whether facts changed for which there are rules. ``vacant``: the nodes that may have no worker any more.
    """

    pool: Pool
    blame: Blame

    def __init__(self, config: CoordinatorConfig | None = None, later: Sequence[CoordinatorConfig] = ()) -> None:
        super().__init__()
        self._configs = (config or CoordinatorConfig(), *later)
        self.priors, self.usage = self.config.priors, Usage(self._budget_s)
        self._vacant: dict[NodeId, None] = {}
        self._touched: dict[TrainerId, bool] = {}
        self._replan = ""
        self._reach: dict[TrainerId, int] | None = None
        self._by_rates = False
        self._connect()

    def _connect(self) -> None:
        """Create the objects that work on the state."""
        self._registry = Registry(self.trainers, self.past)
        self._studies = Studies(self.studies, self._registry)
        self.pool = Pool(self.config.node_order, self.pool, self.config.topology)
        self.blame = Blame(self.pool, self.trainers, self.blame)

    @property
    def config(self) -> CoordinatorConfig:
        """The current configuration."""
        return self._configs[min(self.reopened, len(self._configs) - 1)]

    @property
    def _budget_s(self) -> float | None:
        return seconds(self.config.budget_node_hours, self.config.charge_factor)

    def snapshot(self) -> State:
        """The complete state. It shares mutable parts with the coordinator, so serialize it before the next event."""
        return State(**{item.name: getattr(self, item.name) for item in fields(State)})

    def restore(self, state: State) -> None:
        """Continue from ``state``, which must not be shared with anyone."""
        vars(self).update(vars(state))
        self._touched.clear()  # an event that could not be handled may have left some
        self._connect()

    # --- events of one trainer --------------------------------------------------------------------------------------

    def _about_trainer(self, event: events.TrainerEvent) -> list[Command]:
        trainer = self.trainers.get(event.trainer)
        noted = note(self.now_s, trainer, event) if trainer is not None else None
        if trainer is None or noted is None:
            return []
        self._touch(trainer.id, measured=isinstance(event, events.Progress | events.CheckpointPublished))
        if isinstance(event, events.Progress) and event.rescale_s is not None:
            self.costs.note(up=trainer.grew, seconds=event.rescale_s)
        if isinstance(event, events.GroupFormed):
            trainer.interrupted_s = self.now_s
        self.blame.judge(self.now_s, trainer, noted)
        measured = profiles.note(self.now_s, trainer, event)
        reported = self._follow(self._studies.heard(self.now_s, trainer, event))
        self._replan = self._replan or noted.replan or measured
        if noted.failure:
            ended = self._end(trainer.id, Outcome.FAILED, noted.failure)
        elif noted.stop:
            ended = self._stop(trainer, noted.stop)
        else:
            ended = self._hold(trainer, noted.hold)
        return noted.commands + reported + ended

    def _worker_exited(self, event: events.WorkerExited) -> list[Command]:
        if self.pool.occupant.get(event.node) != event.trainer:
            return []
        del self.pool.occupant[event.node]
        self._vacant[event.node] = None
        if self.pool.free(event.node) and (self._registry.open or self._studies.offers(1)):
            self._replan = f"{event.node} is free again"
        waiting = self.pool.owner.get(event.node)
        if waiting is not None:
            self._touch(waiting)
        return self._about_trainer(event)

    # --- trainers that get no more nodes ----------------------------------------------------------------------------

    def _take_back(self, trainer: Trainer) -> None:
        """Take back all nodes of its target."""
        give_back(self.pool, trainer, 0)
        self._touch(trainer.id)

    def _without_nodes(self, trainer: Trainer, why: str) -> list[Command]:
        self._take_back(trainer)
        return self._plan_if(f"trainer {trainer.id} {why}")

    def _held(self, event: events.TrainerHeld) -> list[Command]:
        trainer = self._registry.hold(event.trainer, event.reason)
        return self._without_nodes(trainer, "is held") if trainer is not None else []

    def _hold(self, trainer: Trainer, why: str) -> list[Command]:
        """Hold ``trainer`` because its state cannot be loaded, for which no node is to blame."""
        if not why or self._registry.hold(trainer.id, why) is None:
            return []
        trainer.unread = None
        trainer.evidence.pardon(Stage.READ)
        return [HoldTrainer(trainer.id, why), *self._without_nodes(trainer, "is held")]

    def _stop(self, trainer: Trainer, reason: str) -> list[Command]:
        self._registry.stop(trainer, reason)
        return self._without_nodes(trainer, "stops")

    def _end(self, trainer_id: TrainerId, outcome: Outcome, reason: str) -> list[Command]:
        trainer = self._registry.close(trainer_id, outcome, reason)
        if trainer is None:
            return []
        self.blame.ended(trainer)
        return self._without_nodes(trainer, outcome.value)

    def _cancelled(self, event: events.TrainerCancelled) -> list[Command]:
        """Cancel a trainer. One that has finished stays so, but its script is cut short after the loop."""
        trainer = self.trainers.get(event.trainer)
        if trainer is not None and trainer.closing is Outcome.FINISHED:
            return cut_short(trainer)
        return self._end(event.trainer, Outcome.CANCELLED, event.reason)

    def _finished(self, event: events.TrainerFinished) -> list[Command]:
        trainer = self._registry.open.get(event.trainer)
        if trainer is None or event.generation not in trainer.living:
            return []
        trainer.step, trainer.samples = event.step, event.samples
        out = self._end(event.trainer, Outcome.FINISHED, f"after step {event.step}")
        for node in trainer.run_on():
            self._is_busy(node)
        return out

    def _is_busy(self, node: NodeId) -> None:
        """Give ``node`` to no trainer while a script runs on there, not even to one that was to get it."""
        self.pool.busy[node] = None
        if (owner := self.pool.owner.pop(node, None)) is not None:
            self.trainers[owner].target.remove(node)
            self._touch(owner)

    # --- studies ----------------------------------------------------------------------------------------------------

    def _follow(self, followed: Followed) -> list[Command]:
        """Take back the nodes of shelved trainers, and start a new trial on the nodes reserved for it."""
        for trainer in followed.shelved:
            self._take_back(trainer)
        if (trial := followed.trial) is not None and not self.draining:
            start_on(self.pool, trial, followed.nodes, self._ending(self.now_s))
            self._touch(trial.id)
            followed.replan = followed.replan or ("" if trial.target else f"trainer {trial.id} arrived")
        self._replan = self._replan or followed.replan
        return followed.commands

    def _closed(self, commands: Sequence[Command]) -> list[Command]:
        """Report the trials that have ended to their studies."""
        out: list[Command] = []
        for command in commands:
            if isinstance(command, CloseTrainer):
                out += self._follow(self._studies.closed(command))
        return out + self._reconcile_touched()

    def reports_of(self, trainer: TrainerId) -> int:
        """How many reports of its study's metric a trial has made; 0 for other trainers."""
        return self._studies.reports(trainer)

    # --- commands ---------------------------------------------------------------------------------------------------

    def _plan_if(self, reason: str) -> list[Command]:
        """Ask for another plan after this event if there is a ``reason``."""
        self._replan = reason
        return []

    def _touch(self, trainer_id: TrainerId, *, measured: bool = False) -> None:
        """Mark a trainer as touched by the event. ``measured``: it was only measured, and no fact changed for which
        :mod:`pilot.core.trainer.reconcile` has a rule.
        """
        self._touched[trainer_id] = self._touched.get(trainer_id, False) or not measured

    def _reconcile_touched(self) -> list[Command]:
        out: list[Command] = []
        for trainer_id in list(self._touched):
            for trial in self._studies.share_proof(self.trainers[trainer_id]):
                self._touch(trial.id)
        for trainer_id, changed in self._touched.items():
            trainer = self.trainers[trainer_id]
            if changed:
                out += self._reconcile(trainer)
                self._studies.share_proof(trainer)
            out += adjust_interval(trainer, self.checkpoint_interval(trainer))
            trainer.usage.count(self.now_s, self._charged(trainer.workers))
            self._note_waiting(trainer)
        self._touched.clear()
        return out

    def _charged(self, nodes: Collection[NodeId]) -> float:
        """How many nodes with the site's charge factor cost as much as ``nodes`` of types with their own."""
        usual, types = self.config.charge_factor, self.pool.types.items()
        other = {name: of.charge_factor / usual for name, of in types if usual and of.charge_factor != usual}
        if not other:
            return float(len(nodes))
        return math.fsum(other.get(self.pool.type_of.get(node, ""), 1.0) for node in nodes)

    def _note_waiting(self, trainer: Trainer) -> None:
        self.aging.note(self.now_s, trainer, self.config.longest_wait_s)

    def _reconcile(self, trainer: Trainer) -> list[Command]:
        out: list[Command] = []
        if trainer.forming is not None and any(n in self.pool.leaving for n in trainer.forming.members):
            out += dissolve(trainer, "a member of the forming group got notice")
        # What remains of a target after a loss, a notice or a node set aside may not be an allowed size.
        give_back(self.pool, trainer, trainer.spec.fitting(len(trainer.target)))
        out += reconcile(trainer, self.pool)
        if self.draining:
            out += hasten(trainer, max(self.config.grace_s, DRAIN_LEAST_S), "the pool was shut down")
        if self._registry.stopped(trainer):
            self.blame.ended(trainer)
        trainer.measured.trains(self.now_s, now=trainer.group is not None)
        return out

    def checkpoint_interval(self, trainer: Trainer) -> CheckpointInterval:
        """How often the trainer should write a checkpoint, and why."""
        measured, end_in_s = trainer.measured, all_end_s(self.pool, trainer.target) - self.now_s
        times = self.config.checkpoint_interval_s, self.config.grace_s, measured.write_s, measured.trained_s(self.now_s)
        return CheckpointInterval(*times, measured.wipeouts, max(0.0, end_in_s))

    def _ending(self, since_s: float) -> ExpiringNodes:
        return ending(self.pool, since_s, self.config.t_fwd_s)
