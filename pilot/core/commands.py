"""Commands: requests that leave the core, in the imperative. Each carries its reason.

Every asynchronous command has exactly one completion event, named in its docstring; the driver guarantees it, even
after a timeout. The others are complete when they are issued.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pilot.core.ids import NO_GENERATION, Generation, NodeId, PlanId, StudyId, TrainerId
from pilot.core.plan.problem import Problem
from pilot.core.trainer.spec import TrainerSpec


@dataclass(frozen=True, slots=True)
class Solve:
    """Make a plan. Supersedes any earlier ``Solve``. Completes with ``PlanReady`` or ``PlanFailed`` of the same id."""

    plan_id: PlanId
    problem: Problem
    reason: str


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start the trainer's process on ``node`` and warm it up. Completes with ``WorkerReady`` or ``WorkerExited``.

    ``replica`` : the number of its replica, where replicas have several nodes; ``place`` : the node's place there.
    """

    trainer: TrainerId
    node: NodeId
    reason: str
    replica: int = 0
    place: int = 0


@dataclass(frozen=True, slots=True)
class StopWorker:
    """End the trainer's process on ``node``. Completes with ``WorkerExited``; the node is free after it.

    ``within_s`` : its loop is over, and its script may run for this much longer; 0: end it now. ``kill`` : it may hang
    in a collective with a lost node, and its state counts no more: kill it.
    """

    trainer: TrainerId
    node: NodeId
    reason: str
    within_s: float = 0.0
    kill: bool = False


@dataclass(frozen=True, slots=True)
class FormGroup:
    """Form ``generation`` over ``members``, rank i on the i-th; the first leads.

    Ranks of ``previous`` that are not members stop at the switch and hold their state until a later command. If no
    member holds a state, one is loaded. Completes with ``GroupFormed`` or ``GroupBroken``, unless dissolved before.
    """

    trainer: TrainerId
    generation: Generation
    members: tuple[NodeId, ...]
    previous: Generation | None  #: trains on until the switch (its ranks agree on the step); None: none trains
    reason: str
    saved_step: int = 0  #: the newest that a checkpoint is known to hold; 0: none, the group may start from scratch
    given_up: Generation = NO_GENERATION  #: checkpoints of generations up to this one do not count


@dataclass(frozen=True, slots=True)
class PauseGroup:
    """Stop all ranks after the same step. Completes with ``GroupPaused`` or ``GroupBroken``, unless dissolved."""

    trainer: TrainerId
    generation: Generation
    members: tuple[NodeId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ExamineGroup:
    """Examine each member's worker; a slow one is left alone, and so is one without progress, unless ``kill``.

    Completes with ``GroupExamined``, unless dissolved before.
    """

    trainer: TrainerId
    generation: Generation
    members: tuple[NodeId, ...]
    reason: str
    kill: bool


@dataclass(frozen=True, slots=True)
class DissolveGroup:
    """Kill the rank processes of ``generation``; the workers live, abort the step, hold their state. Idempotent."""

    trainer: TrainerId
    generation: Generation
    members: tuple[NodeId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """Have the worker on ``node`` write its state now. Completes with ``CheckpointWritten``.

    ``mates`` : the other nodes of its replica, whose workers write their parts.
    """

    trainer: TrainerId
    node: NodeId
    reason: str
    mates: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class SetCheckpointInterval:
    """Have the leader on ``node`` begin a checkpoint every ``interval_s`` from now on."""

    trainer: TrainerId
    node: NodeId
    interval_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class CheckScript:
    """Have the agent of ``node``, where the trainer's only worker trains, run ``pilot check`` beside it.

    Completes with ``ScriptChecked``, or with the worker: its end, or the node's, ends the check.
    """

    trainer: TrainerId
    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseNode:
    """Give the node back: its agent leaves. ``PoolChanged(lost)`` follows when it is gone."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class SetNodeAside:
    """``node`` is not used for ``trainer`` (None: for any) until ``until_s``. For the log; nothing follows."""

    node: NodeId
    trainer: TrainerId | None
    until_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class MarkNodeSlow:
    """``node`` counts as ``slow`` for its type from now on, or no longer. For the log; nothing follows."""

    node: NodeId
    slow: bool
    reason: str


@dataclass(frozen=True, slots=True)
class HoldTrainer:
    """``trainer`` gets no nodes until a user releases it. The user is informed; nothing else follows."""

    trainer: TrainerId
    reason: str


@dataclass(frozen=True, slots=True)
class WarnOfBudget:
    """Most of the budget of ``trainer`` (None: of the pool) is used. The user is informed; nothing else follows."""

    trainer: TrainerId | None
    reason: str


@dataclass(frozen=True, slots=True)
class DrainPool:
    """End the pool. Completes with ``DrainRequested``."""

    reason: str


class Outcome(StrEnum):
    """How a trainer ended."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STOPPED = "stopped"
    """Its budget was used up; its state was saved before."""


@dataclass(frozen=True, slots=True)
class CloseTrainer:
    """The trainer has ended: none of its processes is running, and none will be started."""

    trainer: TrainerId
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class AskTrial:
    """Have the sampler of ``study`` give the parameters of trial ``number``, which will be the trainer ``spec``.

    Requests of a study are answered in the order of their numbers. Completes with ``TrialAsked`` or ``TrialNotAsked``.
    """

    study: StudyId
    number: int
    spec: TrainerSpec


@dataclass(frozen=True, slots=True)
class TellTrial:
    """Give the sampler of ``study`` the value of trial ``number`` at the first rung; None: it failed before that.
    Completes with ``TrialTold``."""

    study: StudyId
    number: int
    value: float | None


Command = (
    Solve
    | StartWorker
    | StopWorker
    | FormGroup
    | PauseGroup
    | ExamineGroup
    | DissolveGroup
    | WriteCheckpoint
    | SetCheckpointInterval
    | CheckScript
    | ReleaseNode
    | SetNodeAside
    | MarkNodeSlow
    | HoldTrainer
    | WarnOfBudget
    | DrainPool
    | CloseTrainer
    | AskTrial
    | TellTrial
)
