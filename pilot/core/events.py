"""Events: facts that enter the core, in the past tense. Frozen; lists where things happen together."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pilot.core.ids import Generation, NodeId, PlanId, TrainerId
from pilot.core.problem import Plan
from pilot.core.spec import TrainerSpec
from pilot.core.study_events import (
    ReservationDue,
    StudyDue,
    StudyResumed,
    StudyStopped,
    StudySubmitted,
    TrialAsked,
    TrialNotAsked,
    TrialTold,
)


@dataclass(frozen=True, slots=True)
class PoolChanged:
    """Nodes came, were given notice, or went; what happens together is one event (FreeTrain §2.1).

    ``joined`` nodes are new and free. ``leaving`` nodes got a notice: they live until ``deadline_s`` at the latest and
    take no new work. ``lost`` nodes are gone, whether announced before or not.
    """

    joined: tuple[NodeId, ...] = ()
    leaving: tuple[NodeId, ...] = ()
    lost: tuple[NodeId, ...] = ()
    deadline_s: float | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class TrainerSubmitted:
    """A user submitted a trainer. Its id is not in use."""

    spec: TrainerSpec


@dataclass(frozen=True, slots=True)
class TrainerCancelled:
    """A user cancelled a trainer."""

    trainer: TrainerId
    reason: str = "cancelled by the user"


@dataclass(frozen=True, slots=True)
class TrainerResumed:
    """A user has a trainer that failed, was cancelled or stopped go on, as the last one in the order of submission.

    ``budget_node_hours`` is its budget from now on, of all that it ever uses; None: it keeps the one that it has.
    """

    trainer: TrainerId
    budget_node_hours: float | None = None


@dataclass(frozen=True, slots=True)
class TrainerHeld:
    """A user wants a trainer to give its nodes back until it is released. It keeps its place in the order."""

    trainer: TrainerId
    reason: str = "held by the user"


@dataclass(frozen=True, slots=True)
class TrainerReleased:
    """A trainer that was held may have nodes again."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True)
class TrainerRemoved:
    """A user removed a trainer that has ended. Its id may be used again."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """``pilot down``: every trainer pauses and checkpoints, then every node is released. Nothing starts any more."""

    reason: str = "pilot down"


@dataclass(frozen=True, slots=True)
class PoolReopened:
    """``pilot up`` after a drain: the trainers that had not ended get nodes again, when there are some. From here on
    the next configuration holds."""


@dataclass(frozen=True, slots=True)
class PlanReady:
    """Completes ``Solve``."""

    plan_id: PlanId
    plan: Plan


@dataclass(frozen=True, slots=True)
class PlanFailed:
    """Completes ``Solve`` where no plan came; the allocation stays as it is."""

    plan_id: PlanId
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """Completes ``StartWorker``: the trainer's process on that node is warm and can join a group."""

    trainer: TrainerId
    node: NodeId


@dataclass(frozen=True, slots=True)
class WorkerSlow:
    """A worker is not warm after a time that is long for any script: the others do not wait for it any more."""

    trainer: TrainerId
    node: NodeId


class ExitCause(StrEnum):
    """Why a worker is no more."""

    STOPPED = "stopped"
    """As asked (``StopWorker``)."""
    RAISED = "raised"
    """The script ended in an error, or would always do so: the trainer has failed."""
    DIED = "died"
    """By a signal, by the out-of-memory killer, or silently stuck and then killed: it may be tried again."""


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """Completes ``StopWorker`` (also for a worker that was starting), or tells that a worker ended by itself."""

    trainer: TrainerId
    node: NodeId
    cause: ExitCause
    detail: str = ""


@dataclass(frozen=True, slots=True)
class GroupFormed:
    """Completes ``FormGroup``: all ranks hold the same state at ``step`` and train on in this generation.

    ``resumed`` is the step of the checkpoint that the group started from where no rank of it held a state (0: from
    scratch), else None. ``identity`` says in words, by name, what the run trains on (:mod:`pilot.core.run_identity`);
    ``accepted``: what was changed of it so far, as (step, what, before, now).
    """

    trainer: TrainerId
    generation: Generation
    step: int
    resumed: int | None = None
    identity: tuple[tuple[str, str], ...] = ()
    accepted: tuple[tuple[int, str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class GroupBroken:
    """A group that forms or trains cannot go on (completes ``FormGroup`` and ``PauseGroup`` too). Its members live.

    ``node`` is where it was noticed first, if an agent noticed.
    """

    trainer: TrainerId
    generation: Generation
    reason: str
    node: NodeId | None = None


@dataclass(frozen=True, slots=True)
class GroupPaused:
    """Completes ``PauseGroup``: all ranks stopped after the same ``step`` and hold the same state."""

    trainer: TrainerId
    generation: Generation
    step: int


@dataclass(frozen=True, slots=True)
class GroupStalled:
    """A member has waited for the others, by now for ``waited_s``, which is longer than the site's time-out.

    It is said again if nothing comes of it.
    """

    trainer: TrainerId
    generation: Generation
    reason: str
    waited_s: float


class Seen(StrEnum):
    """What a look at one member's worker found."""

    WAITS = "waits"
    """It waits for the sums of a step itself, for long."""
    HERE = "here"
    """It answers: it has come meanwhile, or waits for something else."""
    SLOW = "slow"
    """It does not answer, but it makes progress: it is left alone."""
    LOST = "lost"
    """It was stopped or made no progress, and was killed: ``WorkerExited`` tells."""
    UNKNOWN = "unknown"
    """Its agent did not say in time."""


@dataclass(frozen=True, slots=True)
class GroupLookedAt:
    """Completes ``LookAtGroup``: what was seen on each member's node."""

    trainer: TrainerId
    generation: Generation
    seen: tuple[tuple[NodeId, Seen], ...]


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """Completes ``WriteCheckpoint``. ``error`` is empty where the file was verified and published."""

    trainer: TrainerId
    node: NodeId
    step: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointPublished:
    """A checkpoint was published, asked for or not. One rank alone needs ``alone_s`` to write all of it."""

    trainer: TrainerId
    step: int
    alone_s: float


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """Samples [cursor, cursor_end) of ``epoch`` went into steps [step, step_end) of ``generation``.

    Step s is the s-th application of the optimizer, counted from 0 over the trainer's whole life.
    """

    generation: Generation
    epoch: int
    step: int
    step_end: int
    cursor: int
    cursor_end: int


@dataclass(frozen=True, slots=True)
class Progress:
    """At most one a second and trainer, from its leader (MalleTrain's Job Monitor).

    ``samples`` counts those behind the current parameters; ``samples_per_s`` is the median rate of the last 20 steps in
    this generation (None before enough are known). ``total_samples``: how many the whole loop has, where that is known.
    ``metrics`` are what the script reports (loss, accuracy). ``reports``, of a trial, are (number, value) of its newest
    reports of its study's metric, counted from 1; some of them may have been told before.
    """

    trainer: TrainerId
    generation: Generation
    step: int
    epoch: int
    samples: int
    samples_per_s: float | None = None
    stall_s: float | None = None
    rescale_s: float | None = None
    ledger: tuple[LedgerRange, ...] = ()
    metrics: tuple[tuple[str, float], ...] = field(default=())
    total_samples: float | None = None
    reports: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TrainerFinished:
    """The script's loop ended on all ranks and its final checkpoint is published (or it keeps none)."""

    trainer: TrainerId
    generation: Generation
    step: int
    samples: int


@dataclass(frozen=True, slots=True)
class NodeRetried:
    """The time is over for which ``node`` was set aside for ``trainer`` (None: for all)."""

    node: NodeId
    trainer: TrainerId | None = None


@dataclass(frozen=True, slots=True)
class NodeCleared:
    """A person says that ``node`` is well: whatever trainers hold against it is forgotten."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class DecisionDue:
    """Time has come to a multiple of ``decide_every_s``."""


@dataclass(frozen=True, slots=True)
class BudgetDue:
    """By now so much of the budget of ``trainer`` (None: of the pool) is used that something follows."""

    trainer: TrainerId | None = None


@dataclass(frozen=True, slots=True)
class ArrivalsDue:
    """For so long no trainer came that those which came before are to be planned for now."""


@dataclass(frozen=True, slots=True)
class ProfileDue:
    """The time is over for the node count on which ``trainer`` is measured."""

    trainer: TrainerId


Event = (
    PoolChanged
    | TrainerSubmitted
    | TrainerCancelled
    | TrainerResumed
    | TrainerHeld
    | TrainerReleased
    | TrainerRemoved
    | DrainRequested
    | PoolReopened
    | PlanReady
    | PlanFailed
    | WorkerReady
    | WorkerSlow
    | WorkerExited
    | GroupFormed
    | GroupBroken
    | GroupPaused
    | GroupStalled
    | GroupLookedAt
    | CheckpointWritten
    | CheckpointPublished
    | Progress
    | TrainerFinished
    | NodeRetried
    | NodeCleared
    | BudgetDue
    | ArrivalsDue
    | DecisionDue
    | ProfileDue
    | StudySubmitted
    | StudyStopped
    | StudyResumed
    | StudyDue
    | TrialAsked
    | TrialNotAsked
    | TrialTold
    | ReservationDue
)
