"""Events: facts that enter the core, in the past tense. Frozen; things that happen together are one event."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pilot.core.ids import Generation, NodeId, PlanId, TrainerId
from pilot.core.plan.problem import Plan
from pilot.core.pool.node_type import NodeType
from pilot.core.study.events import ReservationDue, StudyDue, StudyEvent
from pilot.core.trainer.proof import ProofState
from pilot.core.trainer.spec import TrainerSpec


@dataclass(frozen=True, slots=True)
class PoolChanged:
    """Nodes joined, got a notice, or were lost; what happens together is one event (FreeTrain §2.1)."""

    joined: tuple[NodeId, ...] = ()  #: new and free
    noticed: tuple[NodeId, ...] = ()  #: got a notice: they live until ``deadline_s`` at most, and get no new work
    lost: tuple[NodeId, ...] = ()  #: gone, announced or not
    deadline_s: float | None = None
    cause: str = ""
    ends: tuple[tuple[NodeId, float | None], ...] = ()  #: when nodes will surely have left (None: no longer known)
    types: tuple[tuple[NodeId, NodeType], ...] = ()  #: of nodes that joined, where they are known


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
    """A user resumed a trainer that failed, was cancelled or was stopped; it becomes the last in the order of
    submission.

    ``budget_node_hours`` is its new budget, for its total use; None: unchanged. ``from_scratch``: its checkpoints are
    given up, and it starts as it did when it was submitted; this is also possible for a held one.
    """

    trainer: TrainerId
    budget_node_hours: float | None = None
    from_scratch: bool = False


@dataclass(frozen=True, slots=True)
class TrainerHeld:
    """A user wants a trainer to give its nodes back until it is released. It keeps its place in the order."""

    trainer: TrainerId
    reason: str = "held by the user"


@dataclass(frozen=True, slots=True)
class TrainerReleased:
    """A held trainer may have nodes again."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True)
class TrainerRemoved:
    """A user removed a trainer that has ended. Its id may be used again."""

    trainer: TrainerId


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """``pilot down``: every trainer pauses and checkpoints, then every node is released. Nothing new starts."""

    reason: str = "pilot down"


@dataclass(frozen=True, slots=True)
class PoolReopened:
    """``pilot up`` after a drain: unfinished trainers get nodes again, when there are some. The next configuration
    applies from here on."""


@dataclass(frozen=True, slots=True)
class EntriesLost:
    """Entries of the journal are missing. In them, trainers had groups of these ``generations``, and plans were asked
    for up to ``plan_id`` (None: not known, so another one is to be asked for)."""

    generations: tuple[tuple[TrainerId, Generation], ...] = ()
    plan_id: PlanId | None = None


@dataclass(frozen=True, slots=True)
class PlanReady:
    """Completes ``Solve``."""

    plan_id: PlanId
    plan: Plan


@dataclass(frozen=True, slots=True)
class PlanFailed:
    """Completes ``Solve`` if there is no plan; the allocation stays as it is."""

    plan_id: PlanId
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """Completes ``StartWorker``: the trainer's process on that node is warm and can join a group."""

    trainer: TrainerId
    node: NodeId


@dataclass(frozen=True, slots=True)
class WorkerSlow:
    """A worker is still not ready after a time that is long for any script: the others stop waiting for it."""

    trainer: TrainerId
    node: NodeId


@dataclass(frozen=True, slots=True)
class CodeLoaded:
    """The worker on ``node`` has loaded ``files`` of the user's that were not copied at the submission: their paths,
    and the SHA-256 of what it loaded. Files that others loaded in the same version may be left out.
    """

    trainer: TrainerId
    node: NodeId
    files: tuple[tuple[str, str], ...]


class ExitCause(StrEnum):
    """Why a worker ended."""

    STOPPED = "stopped"
    """As asked (``StopWorker``)."""
    RAISED = "raised"
    """The script ended in an error, or would always do so: the trainer has failed."""
    DIED = "died"
    """By a signal, by the out-of-memory killer, because its GPU failed, or killed because it was stuck: it may be tried
    again."""
    MATE_LOST = "mate-lost"
    """A process with which it computed, on another node of its replica, has ended or is lost."""
    UNREAD = "unread"
    """It was not started: a file cannot be read or opened there now."""
    JOINED_OTHERWISE = "joined-otherwise"
    """In its first step it computed another gradient than a node that trains; it left before its own counted."""
    RESUMED_OTHERWISE = "resumed-otherwise"
    """Its group computed another gradient than before the resume; the group ended before that step was done."""


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """Completes ``StopWorker`` (also for a worker that was starting), or reports that a worker ended by itself."""

    trainer: TrainerId
    node: NodeId
    cause: ExitCause
    detail: str = ""
    #: class and line of the script's exception, if it is surely the script's should it come on two nodes; "": otherwise
    origin: str = ""
    out_of_memory: bool = False  #: for lack of memory, its accelerator's or its node's


@dataclass(frozen=True, slots=True)
class GroupFormed:
    """Completes ``FormGroup``: all ranks hold the same state at ``step`` and train in this generation."""

    trainer: TrainerId
    generation: Generation
    step: int
    #: step of the checkpoint that the group started from (0: from scratch); None: its ranks held a state
    resumed: int | None = None
    #: what the run trains on, by name (:mod:`pilot.protocol.run_identity`)
    identity: tuple[tuple[str, str], ...] = ()
    accepted: tuple[tuple[int, str, str, str], ...] = ()  #: its accepted changes: (step, what, before, now)


class Unloaded(StrEnum):
    """Why a group has no state, although there is or should be a checkpoint."""

    UNREAD = "unread"
    """It cannot be read, or is not there: that may pass, or be the node's fault."""
    DAMAGED = "damaged"
    """All that is there was read, and none of it can be used."""


@dataclass(frozen=True, slots=True)
class GroupBroken:
    """A group that forms or trains cannot go on (completes ``FormGroup`` and ``PauseGroup`` too). Its members live."""

    trainer: TrainerId
    generation: Generation
    reason: str
    node: NodeId | None = None  #: where it was noticed first, if an agent noticed
    unreached: tuple[tuple[NodeId, NodeId], ...] = ()  #: members (a, b) where a cannot reach b through the network
    unloaded: Unloaded | None = None  #: ``node`` could not load the state
    silent: tuple[NodeId, ...] = ()  #: members whose agents do not answer while others wait for them


@dataclass(frozen=True, slots=True)
class GroupPaused:
    """Completes ``PauseGroup``: all ranks stopped after the same ``step`` and hold the same state."""

    trainer: TrainerId
    generation: Generation
    step: int


@dataclass(frozen=True, slots=True)
class GroupStalled:
    """A member has been waiting for the others for ``waited_s``, longer than the site's timeout.

    Repeated if nothing comes of it.
    """

    trainer: TrainerId
    generation: Generation
    reason: str
    waited_s: float


class StallFinding(StrEnum):
    """The finding of an examination of one member's worker."""

    WAITS = "waits"
    """It, too, has been waiting for the sums of a step for long."""
    HERE = "here"
    """It answers: it has arrived meanwhile, or waits for something else."""
    SLOW = "slow"
    """It does not answer, but it makes progress: it is left alone."""
    LOST = "lost"
    """It was stopped or made no progress, and was killed; ``WorkerExited`` follows."""
    UNKNOWN = "unknown"
    """Its agent did not answer in time."""


@dataclass(frozen=True, slots=True)
class GroupExamined:
    """Completes ``ExamineGroup`` with the finding on each member's node. ``unreached``: see ``GroupBroken``."""

    trainer: TrainerId
    generation: Generation
    seen: tuple[tuple[NodeId, StallFinding], ...]
    unreached: tuple[tuple[NodeId, NodeId], ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """Completes ``WriteCheckpoint``. ``error`` is empty if the file was verified and published."""

    trainer: TrainerId
    node: NodeId
    step: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointPublished:
    """A checkpoint was published, requested or not. A single rank would need ``alone_s`` to write all of it."""

    trainer: TrainerId
    step: int
    alone_s: float


@dataclass(frozen=True, slots=True)
class ScriptChecked:
    """Completes ``CheckScript``: the script passed, differs, or is unchecked; ``line``: the finding in words."""

    trainer: TrainerId
    node: NodeId
    result: ProofState
    line: str


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """Samples [cursor, cursor_end) of ``epoch`` went into steps [step, step_end) of ``generation``.

    Step s is the s-th application of the optimizer, counted from 0 over the trainer's life.
    """

    generation: Generation
    epoch: int
    step: int
    step_end: int
    cursor: int
    cursor_end: int


@dataclass(frozen=True, slots=True)
class Progress:
    """At most one per second and trainer, from its leader (MalleTrain's Job Monitor)."""

    trainer: TrainerId
    generation: Generation
    step: int
    epoch: int
    samples: int  #: those behind the current parameters
    samples_per_s: float | None = None  #: median of the last 20 steps in this generation; None: too few
    stall_s: float | None = None
    rescale_s: float | None = None
    ledger: tuple[LedgerRange, ...] = ()
    metrics: tuple[tuple[str, float], ...] = field(default=())  #: reported by the script (loss, accuracy)
    total_samples: float | None = None  #: of the loop, if known
    #: of a trial: (number, value) of its newest reports of its study's metric, from 1; some may come repeatedly
    reports: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SpeedsMeasured:
    """How fast the members of a group compute, from their ranks' own times; at most one per trainer and 30 s."""

    trainer: TrainerId
    generation: Generation
    per_s: tuple[tuple[NodeId, float], ...]  #: samples per second of computing, without waiting for others
    equal_shares: bool = False  #: each gets the same share of a step's samples, however fast it is


@dataclass(frozen=True, slots=True)
class TrainerFinished:
    """The script's loop ended on all ranks and its final checkpoint is published (or it keeps none)."""

    trainer: TrainerId
    generation: Generation
    step: int
    samples: int


@dataclass(frozen=True, slots=True)
class NodeRetried:
    """The time for which ``node`` was set aside for ``trainer`` (None: for all) is over."""

    node: NodeId
    trainer: TrainerId | None = None


@dataclass(frozen=True, slots=True)
class NodeCleared:
    """The user cleared ``node``: its failures are forgotten."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class DecisionDue:
    """A multiple of ``decide_every_s`` is reached."""


@dataclass(frozen=True, slots=True)
class BudgetDue:
    """The budget of ``trainer`` (None: of the pool) has reached a threshold."""

    trainer: TrainerId | None = None


@dataclass(frozen=True, slots=True)
class ArrivalsDue:
    """No trainer has arrived for a while: plan for those that have."""


@dataclass(frozen=True, slots=True)
class CurvesDue:
    """The last problem is old enough for another one because measured rates differ from the curves in it."""


@dataclass(frozen=True, slots=True)
class TurnDue:
    """A trainer has waited for the longest time (``longest_wait_s``), or a turn is over."""


@dataclass(frozen=True, slots=True)
class ProfileDue:
    """The time for measuring ``trainer`` on its current node count is over."""

    trainer: TrainerId


WorkerEvent = WorkerReady | WorkerSlow | CodeLoaded | WorkerExited
GroupEvent = GroupFormed | GroupBroken | GroupPaused | GroupStalled | GroupExamined | Progress
TrainerEvent = WorkerEvent | GroupEvent | CheckpointWritten | CheckpointPublished | ScriptChecked
"""About the workers and groups of one trainer."""

TimeEvent = (
    ArrivalsDue | BudgetDue | CurvesDue | DecisionDue | NodeRetried | ProfileDue | ReservationDue | StudyDue | TurnDue
)
"""Due by time alone."""

PoolEvent = PoolChanged | PoolReopened | DrainRequested | EntriesLost | NodeCleared | PlanReady | PlanFailed
ArrivalEvent = TrainerSubmitted | TrainerResumed | TrainerReleased
EndEvent = TrainerCancelled | TrainerHeld | TrainerFinished | TrainerRemoved
Event = PoolEvent | ArrivalEvent | EndEvent | TrainerEvent | SpeedsMeasured | TimeEvent | StudyEvent
