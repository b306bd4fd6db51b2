"""The scheduling core: events in, commands out.

Theory of operation
-------------------
Facts enter as events; :meth:`Coordinator.handle` notes them and answers with commands. Two loops run through it:

*The plan.* Whatever changes the question (nodes came or go, a trainer came or ended) makes a new ``Problem`` and asks
for its solution (``Solve``); a newer question makes the older one stale. ``PlanReady`` sets each trainer's *target*
nodes. In between, and where no plan comes, targets stay as they are: a slow or failing solver never strands a node.

*The trainers.* Each trainer is led from where it stands to its target by :mod:`pilot.core.reconcile`, whose table says
what follows from which facts. Losses do not wait for a plan: survivors regroup at once.

=====================  ================================================================  =============
event                  what is noted                                                     new problem
=====================  ================================================================  =============
PoolChanged            nodes come; leaving and lost ones leave their targets; a group    yes
                       with a lost member is dissolved
TrainerSubmitted       the trainer, last in the order of submission                      yes
TrainerCancelled       it closes                                                         yes
DrainRequested         every target becomes empty, for good                              never again
PlanReady, PlanFailed  targets, where the id is the newest                               no
WorkerReady            the worker can join a group                                       no
WorkerExited           the worker is gone; its group is dissolved; three deaths in a     if it failed
                       row without a step, or a script that raised: the trainer failed
GroupFormed            the forming group trains; its members hold the state              no
GroupBroken            the group is dissolved; five in a row without a step: failed      if it failed
GroupPaused            no group; all members hold the same state                         no
CheckpointWritten      the state is saved (or not, and is tried again)                   no
Progress               the step, the measured rate and rescale cost                      no
TrainerFinished        it closes                                                         yes
=====================  ================================================================  =============

Fences: a plan by its id, everything of a group by its generation, which only rises; what is stale is dropped. The order
of trainers is the order of submission, that of nodes the pool's; no set is ever iterated into a decision.

A loss, a notice or a failure that hits a group which *forms* gives up the group that trains, too: its ranks may have
agreed on the switch already, and only they know. Survivors hold their state and the next group starts from it, so this
costs a moment and never a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from pilot.core.assign import assign
from pilot.core.commands import Command, Outcome, ReleaseNode, Solve
from pilot.core.errors import InvariantError, UserError
from pilot.core.events import (
    CheckpointWritten,
    DrainRequested,
    Event,
    ExitCause,
    GroupBroken,
    GroupFormed,
    GroupPaused,
    PlanFailed,
    PlanReady,
    PoolChanged,
    Progress,
    TrainerCancelled,
    TrainerFinished,
    TrainerSubmitted,
    WorkerExited,
    WorkerReady,
)
from pilot.core.ids import NodeId, PlanId, TrainerId
from pilot.core.measured import Measured
from pilot.core.objective import Objective, scaling_efficiency
from pilot.core.pool import NodeOrder, Pool, hostname_order
from pilot.core.problem import Plan, PlanStatus, Problem
from pilot.core.reconcile import dissolve, reconcile
from pilot.core.spec import TrainerSpec
from pilot.core.trainer import Trainer, WorkerPhase

DEATHS_ALLOWED = 3
"""So many deaths of a trainer's processes on living pilots, without a step between them, and it has failed."""

BREAKS_ALLOWED = 5
"""So many groups of a trainer that broke on living pilots, without a step between them, and it has failed."""


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """How decisions are made.

    Parameters
    ----------
    t_fwd_s : forward-looking time of eq. 16
    max_parallel_trainers : Pj_max, how many trainers share the pool at once, first come first served
    objective : what a plan maximises
    node_order : in which order nodes are handed out and taken back
    """

    t_fwd_s: float = 120.0
    max_parallel_trainers: int = 10
    objective: Objective = scaling_efficiency
    node_order: NodeOrder = hostname_order

    def __post_init__(self) -> None:
        if not self.t_fwd_s > 0:
            raise UserError(f"t_fwd_s must be greater than 0, got {self.t_fwd_s}")
        if self.max_parallel_trainers < 1:
            raise UserError(f"max_parallel_trainers must be at least 1, got {self.max_parallel_trainers}")


class Coordinator:
    """The pure state machine that both the live driver and the simulator run.

    ``trainers`` (by id, in submission order), ``pool``, ``problem`` and ``plan`` (the last ones), ``now_s`` (when the
    last event happened) may be read by anyone.
    """

    def __init__(self, config: CoordinatorConfig | None = None) -> None:
        self.config = config or CoordinatorConfig()
        self.pool = Pool(self.config.node_order)
        self.trainers: dict[TrainerId, Trainer] = {}
        self.plan_id = PlanId(0)
        self.problem: Problem | None = None
        self.plan: Plan | None = None
        self.draining = False
        self.now_s = 0.0
        self._open: dict[TrainerId, Trainer] = {}
        self._released: set[NodeId] = set()
        self._touched: dict[TrainerId, None] = {}
        self._question = ""

    def handle(self, now_s: float, event: Event) -> list[Command]:
        """Note ``event``, which happened at ``now_s``, and answer with what is to be done."""
        self.now_s = now_s
        self._touched.clear()
        self._question = ""
        out = self._note(event)
        out += self._reconcile_touched()
        out += self._release_left()
        if self._question and not self.draining:
            out += self._ask(self._question)
        return out

    def _note(self, event: Event) -> list[Command]:
        match event:
            case PoolChanged():
                return self._pool_changed(event)
            case TrainerSubmitted():
                return self._submitted(event.spec)
            case TrainerCancelled():
                return self._end(event.trainer, Outcome.CANCELLED, event.reason)
            case DrainRequested():
                return self._drain()
            case PlanReady():
                return self._plan_ready(event)
            case PlanFailed():
                return []
            case WorkerReady():
                return self._worker_ready(event)
            case WorkerExited():
                return self._worker_exited(event)
            case GroupFormed():
                return self._group_formed(event)
            case GroupBroken():
                return self._group_broken(event)
            case GroupPaused():
                return self._group_paused(event)
            case CheckpointWritten():
                return self._checkpoint_written(event)
            case Progress():
                return self._progress(event)
            case TrainerFinished():
                return self._finished(event)
            case _:
                assert_never(event)

    # --- the pool -------------------------------------------------------------------------------------------------

    def _pool_changed(self, event: PoolChanged) -> list[Command]:
        changed = [self._lose(n) for n in event.lost]
        changed += [self.pool.join(n) for n in event.joined]
        changed += [self._warn(n, event.deadline_s) for n in event.leaving]
        if any(changed):
            self._question = "the pool changed"
        return [c for trainer_id in self._touched for c in self._regroup_without_lost(self.trainers[trainer_id])]

    def _warn(self, node: NodeId, deadline_s: float | None) -> bool:
        """``node`` got a notice: its owner must do without it."""
        owner, occupant = self.pool.owner.get(node), self.pool.occupant.get(node)
        if not self.pool.leave(node, deadline_s):
            return False
        if owner is not None:
            self.trainers[owner].target.remove(node)
            self._touch(owner)
        if occupant is not None:
            self.trainers[occupant].counts.preemptions += 1
            self._touch(occupant)
        return True

    def _lose(self, node: NodeId) -> bool:
        """``node`` is gone; whether that is news to the plan (one with a notice was not counted on any more)."""
        owner, occupant = self.pool.owner.get(node), self.pool.occupant.get(node)
        announced = node in self.pool.leaving
        if not self.pool.remove(node):
            return False
        self._released.discard(node)
        if owner is not None:
            self.trainers[owner].target.remove(node)
            self._touch(owner)
        if occupant is not None:
            trainer = self.trainers[occupant]
            del trainer.workers[node]
            trainer.writing.discard(node)
            trainer.counts.losses += 0 if announced else 1
            self._touch(occupant)
        return not announced

    def _regroup_without_lost(self, trainer: Trainer) -> list[Command]:
        """Dissolve what lost a member; reconcile then forms the next group of the survivors at once."""
        groups = (trainer.group, trainer.forming)
        if not any(n not in trainer.workers for group in groups if group is not None for n in group.members):
            return []
        return dissolve(trainer, "a member was lost")

    def _release_left(self) -> list[Command]:
        out: list[Command] = []
        for node in self.pool.leaving:
            if node not in self.pool.occupant and node not in self._released:
                self._released.add(node)
                out.append(ReleaseNode(node, "it was asked to leave and nothing runs on it"))
        return out

    def _drain(self) -> list[Command]:
        self.draining = True
        for trainer in self._open.values():
            for node in trainer.target:
                del self.pool.owner[node]
            trainer.target.clear()
            self._touch(trainer.id)
        for node in self.pool.nodes:
            self.pool.leave(node, None)
        return []

    # --- trainers come and end --------------------------------------------------------------------------------------

    def _submitted(self, spec: TrainerSpec) -> list[Command]:
        if spec.trainer in self.trainers:
            raise InvariantError(f"trainer {spec.trainer} was submitted twice")
        self.trainers[spec.trainer] = self._open[spec.trainer] = Trainer(spec, Measured(spec))
        self._question = f"trainer {spec.trainer} was submitted"
        return []

    def _end(self, trainer_id: TrainerId, outcome: Outcome, reason: str) -> list[Command]:
        trainer = self._open.pop(trainer_id, None)
        if trainer is None:
            return []
        trainer.closing, trainer.reason = outcome, reason
        for node in trainer.target:
            del self.pool.owner[node]
        trainer.target.clear()
        self._touch(trainer_id)
        self._question = f"trainer {trainer_id} {outcome.value}"
        return []

    def _finished(self, event: TrainerFinished) -> list[Command]:
        trainer = self._open.get(event.trainer)
        if trainer is None or event.generation != trainer.generation:
            return []
        trainer.step, trainer.samples = event.step, event.samples
        return self._end(event.trainer, Outcome.FINISHED, f"after step {event.step}")

    # --- the plan ---------------------------------------------------------------------------------------------------

    def admitted(self) -> list[Trainer]:
        """The trainers that share the pool now: the first Pj_max that are open (first come, first served, §5.2)."""
        return [t for t, _ in zip(self._open.values(), range(self.config.max_parallel_trainers), strict=False)]

    def _ask(self, reason: str) -> list[Command]:
        self.plan_id = PlanId(self.plan_id + 1)
        admitted = self.admitted()
        if not admitted:
            return []
        objective = self.config.objective
        self.problem = Problem(
            nodes=self.pool.usable,
            t_fwd_s=self.config.t_fwd_s,
            candidates=tuple(
                t.candidate(t.spec.objective_curve or objective(t.spec, t.measured.curve)) for t in admitted
            ),
        )
        return [Solve(self.plan_id, self.problem, reason)]

    def _plan_ready(self, event: PlanReady) -> list[Command]:
        if event.plan_id != self.plan_id or self.problem is None or self.draining:
            return []
        self.plan = event.plan
        if event.plan.status is PlanStatus.KEPT:
            return []
        counts = event.plan.as_dict()
        if not self.problem.feasible(counts):
            raise InvariantError(f"plan {event.plan_id} is not feasible: {counts}")
        for trainer in assign(self.pool, self.admitted(), counts):
            self._touch(trainer.id)
        return []

    # --- workers and groups -----------------------------------------------------------------------------------------

    def _worker_ready(self, event: WorkerReady) -> list[Command]:
        trainer = self.trainers.get(event.trainer)
        worker = trainer.workers.get(event.node) if trainer is not None else None
        if worker is not None and worker.phase is WorkerPhase.STARTING:
            worker.phase = WorkerPhase.READY
            self._touch(event.trainer)
        return []

    def _worker_exited(self, event: WorkerExited) -> list[Command]:
        trainer = self.trainers.get(event.trainer)
        worker = trainer.workers.pop(event.node, None) if trainer is not None else None
        if trainer is None or worker is None:
            return []
        trainer.writing.discard(event.node)
        self.pool.occupant.pop(event.node, None)
        self._touch(event.trainer)
        waiting = self.pool.owner.get(event.node)
        if waiting is not None:
            self._touch(waiting)
        if worker.phase is WorkerPhase.STOPPING or not trainer.open:
            return []
        return self._worker_failed(trainer, worker.attempt, event) + self._regroup_without_lost(trainer)

    def _worker_failed(self, trainer: Trainer, attempt: int, event: WorkerExited) -> list[Command]:
        if event.cause is ExitCause.RAISED:
            return self._script_raised(trainer, event)
        trainer.counts.worker_deaths += 1
        if attempt == trainer.deaths_in_a_row:
            trainer.deaths_in_a_row += 1
        if trainer.deaths_in_a_row < DEATHS_ALLOWED:
            return []
        times = f"its process died {DEATHS_ALLOWED} times on living pilots without a step between"
        return self._end(trainer.id, Outcome.FAILED, f"{times}; the last time: {event.detail}")

    def _script_raised(self, trainer: Trainer, event: WorkerExited) -> list[Command]:
        if trainer.group is None and not trainer.holders():
            return self._end(trainer.id, Outcome.FAILED, event.detail)
        if trainer.group is not None and event.node in trainer.group.members:
            return self._end(trainer.id, Outcome.FAILED, event.detail)
        # A newcomer that cannot start does no harm to those that train: they go on without further growth.
        trainer.refusal = event.detail
        if event.node in trainer.target:
            trainer.target.remove(event.node)
            del self.pool.owner[event.node]
        self._question = f"a newcomer of {trainer.id} could not start"
        return []

    def _group_formed(self, event: GroupFormed) -> list[Command]:
        trainer = self.trainers.get(event.trainer)
        if trainer is None or trainer.forming is None or event.generation != trainer.forming.generation:
            return []
        before = len(trainer.group.members) if trainer.group is not None else 0
        trainer.group, trainer.forming = trainer.forming, None
        self._count_rescale(trainer, before, len(trainer.group.members))
        if event.resumed is not None:
            trainer.counts.lost_steps += max(0, trainer.step - event.resumed)
        trainer.step = event.step
        trainer.synced, trainer.saved, trainer.failed_writes = True, False, 0
        for node in trainer.group.members:
            trainer.workers[node].has_state = True
        self._touch(trainer.id)
        return []

    def _count_rescale(self, trainer: Trainer, before: int, after: int) -> None:
        trainer.grew = after >= before
        if before and after != before:
            if trainer.grew:
                trainer.counts.rescales_up += 1
            else:
                trainer.counts.rescales_down += 1

    def _group_broken(self, event: GroupBroken) -> list[Command]:
        trainer = self._open.get(event.trainer)
        if trainer is None:
            return []
        if event.generation not in [g.generation for g in (trainer.group, trainer.forming) if g is not None]:
            return []
        out = dissolve(trainer, event.reason)
        self._touch(trainer.id)
        trainer.broken_in_a_row += 1
        if trainer.broken_in_a_row >= BREAKS_ALLOWED:
            reason = f"{BREAKS_ALLOWED} of its groups broke without a step between; the last one: {event.reason}"
            out += self._end(trainer.id, Outcome.FAILED, reason)
        return out

    def _group_paused(self, event: GroupPaused) -> list[Command]:
        trainer = self._open.get(event.trainer)
        if trainer is None or trainer.group is None or event.generation != trainer.group.generation:
            return []
        out = dissolve(trainer, "it paused after an agreed step")
        trainer.synced, trainer.step = True, event.step
        self._touch(trainer.id)
        return out

    def _checkpoint_written(self, event: CheckpointWritten) -> list[Command]:
        trainer = self.trainers.get(event.trainer)
        if trainer is None or event.node not in trainer.writing:
            return []
        trainer.writing.discard(event.node)
        if event.error:
            trainer.failed_writes += 1
        else:
            trainer.saved = True
        self._touch(trainer.id)
        return []

    def _progress(self, event: Progress) -> list[Command]:
        trainer = self._open.get(event.trainer)
        if trainer is None or trainer.group is None or event.generation != trainer.group.generation:
            return []
        if event.step > trainer.step:
            trainer.deaths_in_a_row = trainer.broken_in_a_row = 0
        trainer.step, trainer.epoch, trainer.samples = event.step, event.epoch, event.samples
        if event.samples_per_s is not None:
            trainer.measured.rate(len(trainer.group.members), event.samples_per_s)
        if event.rescale_s is not None:
            trainer.measured.cost(trainer.grew, event.rescale_s)
        return []

    # --- common -----------------------------------------------------------------------------------------------------

    def _touch(self, trainer_id: TrainerId) -> None:
        self._touched[trainer_id] = None

    def _reconcile_touched(self) -> list[Command]:
        out: list[Command] = []
        for trainer_id in list(self._touched):
            trainer = self.trainers[trainer_id]
            if trainer.forming is not None and any(n in self.pool.leaving for n in trainer.forming.members):
                out += dissolve(trainer, "a member of the group that forms was given notice")
            out += reconcile(trainer, self.pool)
        return out
