"""The scheduling core: events in, commands out.

Theory of operation
-------------------
Facts enter as events; :meth:`Coordinator.handle` records them and answers with commands. There are two loops:

*The plan.* Whatever changes the problem (nodes joined or left, a trainer arrived or ended) makes a new ``Problem`` and
requests its solution (``Solve``). A newer problem makes the older one stale, and a problem whose answer was to change
nothing is not posed again (``settled``). Progress poses a problem, at a bounded rate, when a curve differs from that in
the last problem. ``PlanReady`` sets each trainer's *target* nodes. Until then, and if no plan comes, targets stay as
they are: a slow or failing solver never strands a node. Only a trainer that arrives while no plan is being made gets
its minimum of the free nodes at once: it starts while its batch is collected. A problem treats nodes as
interchangeable. If too many are set aside for a trainer to get its count, the plan is not carried out, and the problem
is posed again with at most what that trainer can have. With periodic plans the problem waits until a decision is due,
and until then events only consult :mod:`pilot.core.plan.between`; while a decision is ``awaited``, events pose it
again.

*The trainers.* :mod:`pilot.core.trainer.transitions` records what happens to one. Then
:mod:`pilot.core.trainer.reconcile`, a table of rules, brings it from where it is to its target. Losses do not wait for
a plan: survivors regroup at once.

``tests/lifecycle.py`` has tables of what each event does; the tests prove them.

Fences: a plan is fenced by its id, everything about a group by its generation, which only increases; stale events are
dropped. Trainers are ordered by submission, nodes as in the pool; decisions never depend on the iteration order of a
set.

A loss, a notice or a failure that hits a *forming* group gives up the training group, too, because its ranks may
already have agreed on the switch, and only they know. Survivors hold their state and the next group starts from it, so
this costs a moment but never a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import assert_never

from pilot.core import events
from pilot.core.commands import (
    CloseTrainer,
    Command,
    DrainPool,
    HoldTrainer,
    Outcome,
    ReleaseNode,
    Solve,
    WarnOfBudget,
)
from pilot.core.config import CoordinatorConfig, State
from pilot.core.curves import profiles
from pilot.core.curves.measured import KEPT_OF_POOL, RescaleCosts, experience, learn
from pilot.core.errors import InvariantError
from pilot.core.ids import NodeId, PlanId, StudyId, TrainerId
from pilot.core.plan.arrivals import Arrivals
from pilot.core.plan.assign import assign, give_back, start_on
from pilot.core.plan.between import next_due_s, question
from pilot.core.plan.pose import outdated, pose, wanted
from pilot.core.plan.problem import Plan, PlanStatus, Problem
from pilot.core.pool.blame import Blame, Judgement
from pilot.core.pool.changes import PoolChange
from pilot.core.pool.evidence import Stage
from pilot.core.pool.losses import Losses
from pilot.core.pool.pool import ExpiringNodes, Pool, all_end_s, ending
from pilot.core.study.events import StudyEvent
from pilot.core.study.studies import Followed, Studies
from pilot.core.study.study import Study
from pilot.core.timers import Timers
from pilot.core.trainer.actions import DRAIN_LEAST_S, cut_short, dissolve, hasten
from pilot.core.trainer.budget import Usage, seconds
from pilot.core.trainer.checkpoint_interval import CheckpointInterval, pace, pace_of
from pilot.core.trainer.reconcile import reconcile
from pilot.core.trainer.registry import Registry, RollEvent
from pilot.core.trainer.trainer import Phase, Trainer
from pilot.core.trainer.transitions import Noted, TrainerEvent, note

LOST = "entries of the journal are missing"


class Coordinator:
    """The pure state machine that both the live driver and the simulator run.

    ``trainers`` (by id, in submission order), ``past`` (those that ended so long ago that only their outcome is
    kept), ``pool``, ``problem`` and ``plan`` (the last ones), ``now_s`` (when the last event happened) may be read by
    anyone. ``later`` are the configurations that take over, one each time that the pool is ``reopened``.
    """

    def __init__(self, config: CoordinatorConfig | None = None, later: Sequence[CoordinatorConfig] = ()) -> None:
        self._configs = (config or CoordinatorConfig(), *later)
        self.reopened = 0
        self.costs = RescaleCosts(KEPT_OF_POOL)
        self.priors = self.config.priors
        self.usage = Usage(seconds(self.config.budget_node_hours, self.config.charge_factor))
        self.pool = Pool(self.config.node_order, topology=self.config.topology)
        self.trainers: dict[TrainerId, Trainer] = {}
        self.past: dict[TrainerId, Outcome] = {}
        self._registry = Registry(self.trainers, self.past)
        self.studies: dict[StudyId, Study] = {}
        self._studies = Studies(self.studies, self._registry)
        self.plan_id = PlanId(0)
        self.problem: Problem | None = None
        self.plan: Plan | None = None
        self.settled = False
        self.planning = False
        self.asked_s = 0.0
        self.awaited = False
        self.decided_s = 0.0
        self.draining = False
        self.arrivals = Arrivals()
        self.changes = profiles.Changes()
        self.losses = Losses()
        self.now_s = 0.0
        self.blame = Blame(self.pool, self.trainers)
        self._vacant: dict[NodeId, None] = {}
        self._touched: dict[TrainerId, bool] = {}
        self._question = ""
        self._reach: dict[TrainerId, int] | None = None

    @property
    def config(self) -> CoordinatorConfig:
        """The current configuration."""
        return self._configs[min(self.reopened, len(self._configs) - 1)]

    def snapshot(self) -> State:
        """The complete state. It shares mutable parts with the coordinator, so serialize it before the next event."""
        return State(**{item.name: getattr(self, item.name) for item in fields(State)})

    def restore(self, state: State) -> None:
        """Continue from ``state``, which must not be shared with anyone."""
        for name in [item.name for item in fields(State) if item.name not in ("pool", "blame")]:
            setattr(self, name, getattr(state, name))
        self._touched.clear()  # an event that could not be handled may have left some
        self._registry = Registry(self.trainers, self.past)
        self._studies = Studies(self.studies, self._registry)
        self.pool = Pool(self.config.node_order, state.pool, self.config.topology)
        self.blame = Blame(self.pool, self.trainers, state.blame)

    def handle(self, now_s: float, event: events.Event) -> list[Command]:
        """Record ``event``, which happened at ``now_s``, and return the commands that follow."""
        self.now_s = now_s
        self._vacant.clear()
        self._question, self._reach = "", None
        out = self._note(event)
        out += self._reconcile_touched()
        out += self._closed(out)
        out += self._release_vacant()
        self.usage.count(now_s, len(self.pool))
        if any(isinstance(command, CloseTrainer) for command in out):
            measured = [trainer.measured for trainer in self.trainers.values()]
            self.priors = experience(measured, self.config.priors, self.priors)
            self._registry.forget_oldest(self.config.ended_kept)
        if self._question and not self.draining:
            self.arrivals.close()
            out += self._ask(self._question)
        return out

    def _note(self, event: events.Event) -> list[Command]:
        if isinstance(event, events.WorkerExited):
            return self._worker_exited(event)
        if isinstance(event, TrainerEvent):
            return self._about_trainer(event)
        if isinstance(event, RollEvent):
            return self._rolled(event)
        if isinstance(event, StudyEvent):
            return self._follow(self._studies.note(event, self.config.charge_factor))
        match event:
            case events.PoolChanged():
                return self._pool_changed(event)
            case events.TrainerCancelled():
                return self._cancelled(event)
            case events.TrainerHeld():
                return self._held(event)
            case events.ArrivalsDue():
                return self._ask_if(self.arrivals.close())
            case events.ProfileDue():
                return self._ask_if(profiles.give_up(self.now_s, self._registry.open.get(event.trainer)))
            case events.BudgetDue():
                return self._look_at_budget(event)
            case events.DrainRequested():
                return self._drain()
            case events.PoolReopened():
                return self._reopened()
            case events.EntriesLost():
                return self._entries_lost(event)
            case events.PlanReady():
                return self._plan_ready(event)
            case events.PlanFailed():
                return self._plan_failed(event)
            case events.DecisionDue():
                return self._decide()
            case events.TrainerFinished():
                return self._finished(event)
            case events.NodeRetried():
                return self._ask_if(self.blame.retried(event))
            case events.NodeCleared():
                return self._ask_if(f"{event.node} was cleared" if self.blame.forget(event.node) else "")
            case _:
                assert_never(event)

    # --- the pool -------------------------------------------------------------------------------------------------

    def _pool_changed(self, event: events.PoolChanged) -> list[Command]:
        change = PoolChange(self.pool, self.trainers, self.blame)
        commands = change.note(event, draining=self.draining)
        self.losses.note(self.now_s, len(self.pool), change.lost)
        self._vacant.update(change.vacant)
        for trainer_id in change.touched:
            self._touch(trainer_id)
        if change.counts:
            self.changes.note(self.now_s)
            self._question = "the pool changed"
        return commands

    def _release_vacant(self) -> list[Command]:
        """Release leaving nodes on which nothing runs any more; only nodes that this event affected are checked."""
        vacant = [n for n in self._vacant if n in self.pool.leaving and n not in self.pool.occupant]
        return [ReleaseNode(node, "it was asked to leave and nothing runs on it") for node in vacant]

    def _drain(self) -> list[Command]:
        self.draining = True
        for trainer in self._registry.open.values():
            self._take_back(trainer)
        for trainer in self.trainers.values():
            if trainer.phase is Phase.CLOSING:
                self._touch(trainer.id)
        self._studies.drain()
        self._vacant = {node: None for node in self.pool.nodes if self.pool.leave(node, None)}
        return []

    def _reopened(self) -> list[Command]:
        """Switch to the next configuration, with its order of nodes."""
        self.draining = False
        self.reopened += 1
        self.pool.order_by(self.config.node_order, self.config.topology)
        budget_s = seconds(self.config.budget_node_hours, self.config.charge_factor)
        self.usage = Usage(budget_s, nodes=len(self.pool), since_s=self.now_s)
        return self._ask_if("the pool is up again")

    def _entries_lost(self, event: events.EntriesLost) -> list[Command]:
        """A generation that may exist is never granted again. What a group of it did is learned from its pilots."""
        out: list[Command] = []
        for trainer_id, generation in event.generations:
            trainer = self.trainers.get(trainer_id)
            if trainer is not None and trainer.generation < generation:
                out += dissolve(trainer, LOST) if trainer.forming is not None else []
                trainer.generation = generation
                self._touch(trainer_id)
        if event.plan_id is None:
            return out + self._ask_if(LOST)
        self.plan_id = max(self.plan_id, event.plan_id)
        return out

    # --- trainers come and end --------------------------------------------------------------------------------------

    def _rolled(self, event: RollEvent) -> list[Command]:
        """A trainer that arrives and could have nodes is planned for with its batch; one that only queues is not."""
        came = self._registry.note(event, self.config.charge_factor)
        if came is None or came not in self.admitted() or self.pool.usable < came.spec.min_nodes:
            return []
        self.arrivals.note(self.now_s, came.id)
        if not self.config.arrivals_s:
            return self._ask_if(self.arrivals.close())
        self._start_small(came)
        return []

    def _start_small(self, trainer: Trainer) -> None:
        """Give ``trainer`` its minimum of the free nodes until its batch is planned for. Not while a plan is being
        made, which counts on these nodes itself, nor with a cadence, which has its own rule for free nodes."""
        if not (self.planning or self.config.decide_every_s):
            soon = self._ending(self.now_s)
            for started in assign(self.pool, [trainer], {trainer.id: trainer.spec.min_nodes}, ending=soon).changed:
                self._touch(started.id)

    def _take_back(self, trainer: Trainer) -> None:
        """Take back all nodes of its target."""
        for node in trainer.target:
            del self.pool.owner[node]
        trainer.target.clear()
        self._touch(trainer.id)

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

    def _without_nodes(self, trainer: Trainer, why: str) -> list[Command]:
        self._take_back(trainer)
        return self._ask_if(f"trainer {trainer.id} {why}")

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
        """One that has finished stays so, but what its script does after the loop is cut short."""
        trainer = self.trainers.get(event.trainer)
        if trainer is not None and trainer.closing is Outcome.FINISHED:
            return cut_short(trainer)
        return self._end(event.trainer, Outcome.CANCELLED, event.reason)

    def _finished(self, event: events.TrainerFinished) -> list[Command]:
        trainer = self._registry.open.get(event.trainer)
        if trainer is None or event.generation not in trainer.living:
            return []
        trainer.step, trainer.samples = event.step, event.samples
        return self._end(event.trainer, Outcome.FINISHED, f"after step {event.step}")

    # --- studies ----------------------------------------------------------------------------------------------------

    def _follow(self, followed: Followed) -> list[Command]:
        """Take back the nodes of shelved trainers, and start a new trial on the nodes kept for it."""
        for trainer in followed.shelved:
            self._take_back(trainer)
        if (trial := followed.trial) is not None and not self.draining:
            start_on(self.pool, trial, followed.nodes, self._ending(self.now_s))
            self._touch(trial.id)
            followed.question = followed.question or ("" if trial.target else f"trainer {trial.id} arrived")
        self._question = self._question or followed.question
        return followed.commands

    def _closed(self, commands: Sequence[Command]) -> list[Command]:
        """Tell the studies which of their trials have ended."""
        out: list[Command] = []
        for command in commands:
            if isinstance(command, CloseTrainer):
                out += self._follow(self._studies.closed(command))
        return out + self._reconcile_touched()

    def reports_of(self, trainer: TrainerId) -> int:
        """How many reports of its study's metric a trial has made; 0 for other trainers."""
        return self._studies.reports(trainer)

    # --- time -------------------------------------------------------------------------------------------------------

    @property
    def timers(self) -> Timers:
        """The coordinator's timers."""
        usage = None if self.draining else self.usage
        open_ = list(self._registry.open.values())
        return Timers(
            self.blame, self.arrivals, self.config.arrivals_s, usage, open_, self._decision_due_s(), self._studies
        )

    def _look_at_budget(self, event: events.BudgetDue) -> list[Command]:
        trainer = self._registry.open.get(event.trainer) if event.trainer is not None else None
        if event.trainer is not None and trainer is None:
            return []
        usage = self.usage if trainer is None else trainer.usage
        verdict = usage.look(self.now_s, self.config.charge_factor)
        if verdict.end and trainer is not None:
            return self._stop(trainer, verdict.end)
        if verdict.end:
            return [] if self.draining else [DrainPool(verdict.end)]
        return [WarnOfBudget(event.trainer, verdict.warning)] if verdict.warning else []

    def _decision_due_s(self) -> float:
        """The next multiple of the cadence, while there are trainers."""
        idle = self.draining or not self._registry.open
        return math.inf if idle else next_due_s(self.decided_s, self.config.decide_every_s)

    def _decide(self) -> list[Command]:
        if self._decision_due_s() > self.now_s:
            return []
        self.decided_s, self.awaited = self.now_s, True
        return self._ask_if("a decision is due")

    # --- the plan ---------------------------------------------------------------------------------------------------

    def admitted(self) -> list[Trainer]:
        """The trainers that share the pool now, Pj_max at most."""
        return self._registry.admitted(self.config.max_parallel_trainers)

    def _offers(self, most: int) -> list[Trainer]:
        """Up to ``most`` trials that studies may ask for, within Pj_max."""
        asking = sum(len(study.reserved) for study in self.studies.values())
        room = max(0, self.config.max_parallel_trainers - len(self.admitted()) - asking)
        return self._studies.offers(min(room, most))

    def _ask_if(self, reason: str) -> list[Command]:
        """Ask for another plan if there is a ``reason``."""
        self._question = reason
        return []

    def _ask(self, reason: str) -> list[Command]:
        self.asked_s = self.now_s
        admitted, config, reserved = self.admitted(), self.config, self._studies.reserved
        free = self.pool.usable - reserved - sum(len(trainer.target) for trainer in admitted)
        trainers = admitted + self._offers(max(1, free))
        learn([trainer.measured for trainer in trainers], self.priors)
        weights = self._studies.weights(self.now_s, self.pool.usable, trainers)
        around = profiles.Around(self.priors, self.costs, self.changes.news_s(self.now_s), config.objective, weights)
        pins = profiles.pins(self.now_s, self.pool.usable - reserved, admitted, around)
        problem = pose(
            self.pool,
            self.blame,
            trainers,
            config,
            self.costs,
            self._reach,
            self.now_s,
            pins,
            weights,
            reserved,
            self._ending(self.now_s),
            self.losses.rate,
        )
        if problem is not None and config.decide_every_s and not self.awaited:
            problem = question(problem)
        if self.settled and problem == self.problem:
            self.awaited = False
            return []  # the answer is known: everything stays as it is
        self.plan_id = PlanId(self.plan_id + 1)
        self.planning = problem is not None
        if problem is None:
            self.awaited = False
            return []
        self.problem, self.settled = problem, False
        return [Solve(self.plan_id, problem, reason)]

    def _plan_failed(self, event: events.PlanFailed) -> list[Command]:
        if event.plan_id == self.plan_id:
            self.planning = self.awaited = False
        return []

    def _plan_ready(self, event: events.PlanReady) -> list[Command]:
        if event.plan_id != self.plan_id:
            return []
        self.planning = False
        if self.problem is None or self.draining:
            return []
        if event.plan.status is PlanStatus.KEPT:
            self.plan, self.awaited = event.plan, False
            return []
        counts, late = event.plan.as_dict(), dict(event.plan.ending)
        if not self.problem.feasible(counts, late):
            raise InvariantError(f"plan {event.plan_id} is not feasible: {counts}, ending: {late}")
        soon = self._ending(self.asked_s)
        assigned = assign(self.pool, self.admitted(), counts, self.config.gpus, soon, late)
        if assigned.short:  # too many nodes are set aside for them; pose it again with at most what they can use
            self._reach = {c.trainer: c.max_nodes for c in self.problem.candidates} | assigned.short
            return self._ask_if(f"{', '.join(assigned.short)} cannot use the nodes that the plan gave")
        self.plan, self.settled, self.awaited = event.plan, counts == self.problem.kept(), False
        for trainer in assigned.changed:
            self._touch(trainer.id)
        return self._studies.won(self.now_s, counts)

    # --- workers and groups -----------------------------------------------------------------------------------------

    def _about_trainer(self, event: TrainerEvent) -> list[Command]:
        trainer = self.trainers.get(event.trainer)
        noted = note(self.now_s, trainer, event) if trainer is not None else None
        if trainer is None or noted is None:
            return []
        self._touch(trainer.id, stands=isinstance(event, events.Progress | events.CheckpointPublished))
        if isinstance(event, events.Progress) and event.rescale_s is not None:
            self.costs.note(up=trainer.grew, seconds=event.rescale_s)
        if isinstance(event, events.GroupFormed):
            trainer.interrupted_s = self.now_s
        judgement = self._judge(trainer, noted)
        measured = profiles.note(self.now_s, trainer, event)
        reported = self._follow(self._studies.heard(self.now_s, trainer, event))
        self._question = self._question or judgement.question or noted.question or measured
        if isinstance(event, events.Progress) and not self._question:
            self._question = outdated(trainer, self.now_s - self.asked_s, self.config)
        failure = noted.failure or judgement.failure
        ended = self._end(trainer.id, Outcome.FAILED, failure) if failure else self._hold(trainer, noted.hold)
        if noted.stop:
            ended = self._stop(trainer, noted.stop)
        return noted.commands + judgement.commands + reported + ended

    def _judge(self, trainer: Trainer, noted: Noted) -> Judgement:
        if noted.failure:
            return Judgement()
        if noted.works is not None:
            return self.blame.worked(self.now_s, trainer, *noted.works)
        if trainer.stops:  # no worker of it is started again, here or elsewhere
            return Judgement()
        return self.blame.accused(self.now_s, trainer, noted.accusations)

    def _worker_exited(self, event: events.WorkerExited) -> list[Command]:
        if self.pool.occupant.get(event.node) != event.trainer:
            return []
        del self.pool.occupant[event.node]
        self._vacant[event.node] = None
        waiting = self.pool.owner.get(event.node)
        if waiting is not None:
            self._touch(waiting)
        return self._about_trainer(event)

    def pace_of(self, trainer: Trainer) -> CheckpointInterval:
        """How often the trainer should write a checkpoint, and why."""
        return pace_of(self.config, trainer, self.now_s, all_end_s(self.pool, trainer.target))

    def _ending(self, since_s: float) -> ExpiringNodes:
        return ending(self.pool, since_s, self.config.t_fwd_s)

    def wanted_nodes(self) -> int:
        """How many nodes the pool should have: as many as a plan would use, plus those here that no trainer can use."""
        offers = self._offers(self.config.max_parallel_trainers)
        return wanted(self.admitted() + offers, self.config, self.costs) + self._studies.reserved + self.useless()

    def useless(self) -> int:
        """How many nodes of the pool no trainer can use, so that other pilots must replace them. If it is the script
        that cannot start, replacing them would not help, and they do not count.
        """
        aside = sum(self.pool.is_free(node) for node in self.pool.aside)
        return aside + self.blame.useless_to([t for t in self.admitted() if not t.refusal], lasting=True)

    # --- common -----------------------------------------------------------------------------------------------------

    def _touch(self, trainer_id: TrainerId, *, stands: bool = False) -> None:
        """Mark a trainer as touched by the event. ``stands``: it was only measured, and no fact changed for which
        :mod:`pilot.core.trainer.reconcile` has a rule.
        """
        self._touched[trainer_id] = self._touched.get(trainer_id, False) or not stands

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
            out += pace(trainer, self.pace_of(trainer))
            trainer.usage.count(self.now_s, len(trainer.workers))
        self._touched.clear()
        return out

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
