"""What happened, in sentences made from a journal's entries: for ``pilot events``, the log and the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from pilot.core.commands import (
    CloseTrainer,
    Command,
    FormGroup,
    HoldTrainer,
    Outcome,
    SetNodeAside,
    Solve,
    StartWorker,
    WarnOfBudget,
)
from pilot.core.events import (
    CheckpointPublished,
    CheckpointWritten,
    DrainRequested,
    Event,
    ExitCause,
    GroupBroken,
    GroupFormed,
    GroupPaused,
    GroupStalled,
    NodeCleared,
    NodeRetried,
    PlanFailed,
    PlanReady,
    PoolChanged,
    PoolReopened,
    Progress,
    ScriptChecked,
    TrainerCancelled,
    TrainerHeld,
    TrainerReleased,
    TrainerRemoved,
    TrainerResumed,
    TrainerSubmitted,
    WorkerExited,
    WorkerReady,
    WorkerSlow,
)
from pilot.core.ids import Generation, NodeId, PlanId, TrainerId
from pilot.core.pool.evidence import headline
from pilot.core.study.events import (
    StudyResumed,
    StudyStopped,
    StudySubmitted,
    TrialAsked,
    TrialNotAsked,
)
from pilot.history.words import counted, node_count, node_names, plan_change
from pilot.protocol.pool_status import Answer
from pilot.rundir.entries import Decision, Entry


class Topic(StrEnum):
    """What a sentence is about."""

    NODE = "node"
    TRAINER = "trainer"
    PLAN = "plan"
    GROUP = "group"
    CHECKPOINT = "checkpoint"
    POOL = "pool"


class PoolEvent(Answer, frozen=True):
    """One thing that happened: each line of `pilot events --json` is one."""

    unix_s: float  #: when, in seconds since 1970
    at_s: float  #: when, in seconds on the pool's clock
    kind: Topic  #: what it is about
    trainer: str | None  #: the trainer concerned; null: none, or several
    nodes: list[str]  #: the nodes concerned; may be empty
    event: int  #: the number of its entry in the journal; agents' logs name it, too
    text: str  #: the same in words, which may change with any version


class Story:
    """Tells what each entry of a journal means; pass them to :meth:`tell` in order.

    Parameters
    ----------
    began_s : when the pool's clock was at 0, in seconds since 1970
    """

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._now_s = 0.0
        self._seq = 0
        self._members: dict[tuple[TrainerId, Generation], tuple[NodeId, ...]] = {}
        self._started_s: dict[tuple[TrainerId, NodeId], float] = {}
        self._asked: tuple[PlanId, dict[TrainerId, int]] | None = None
        self._leaving: set[NodeId] = set()
        self._draining = False

    def tell(self, entry: Entry) -> list[PoolEvent]:
        """What ``entry`` means to a person; empty if it is of no interest."""
        self._now_s, self._seq = entry.now_s, entry.seq
        if not isinstance(entry, Decision):
            trainer, text = str(entry.note.get("trainer", "")), str(entry.note.get("text", ""))
            kind = Topic.TRAINER if trainer else Topic.POOL
            return [self._told(kind, text, trainer)] if text else []
        told = list(self._event(entry.event))
        return told + [told for command in entry.commands for told in self._command(command)]

    def _event(self, event: Event) -> Iterator[PoolEvent]:
        match event:
            case PoolChanged():
                yield from self._pool(event)
            case TrainerSubmitted():
                spec = event.spec
                text = f"submitted, for {spec.min_nodes} to {node_count(spec.max_nodes)}"
                yield self._told(Topic.TRAINER, text, spec.trainer)
            case TrainerCancelled() | TrainerHeld():
                yield self._told(Topic.TRAINER, event.reason, event.trainer)
            case TrainerReleased():
                yield self._told(Topic.TRAINER, "released", event.trainer)
            case TrainerResumed():
                how = " from scratch" if event.from_scratch else ""
                yield self._told(Topic.TRAINER, f"resumed{how}", event.trainer)
            case TrainerRemoved():
                yield self._told(Topic.TRAINER, "removed", event.trainer)
            case PoolReopened():
                self._draining = False
                yield self._told(Topic.POOL, "the pool is up again")
            case DrainRequested():
                self._draining = True
                yield self._told(Topic.POOL, f"the pool drains: {event.reason}")
            case PlanReady():
                yield from self._plan(event)
            case PlanFailed():
                yield self._told(Topic.PLAN, f"no plan: {headline(event.reason)}")
            case WorkerReady() | WorkerSlow() | WorkerExited():
                yield from self._worker(event)
            case CheckpointPublished():
                yield self._told(Topic.CHECKPOINT, f"checkpoint at step {event.step}", event.trainer)
            case CheckpointWritten(error=error) if error:
                yield self._told(Topic.CHECKPOINT, f"no checkpoint: {headline(error)}", event.trainer, [event.node])
            case ScriptChecked():
                text = f"its script, checked: {event.result}: {event.line}"
                yield self._told(Topic.TRAINER, text, event.trainer, [event.node])
            case NodeRetried():
                whom = f"is used for {event.trainer} again" if event.trainer else "is used again"
                yield self._told(Topic.NODE, f"{event.node} {whom}", event.trainer, [event.node])
            case NodeCleared():
                yield self._told(Topic.NODE, f"{event.node} was cleared", None, [event.node])
            case StudySubmitted() | StudyStopped() | StudyResumed() | TrialAsked() | TrialNotAsked():
                yield from self._study(event)
            case _:
                yield from self._group(event)

    def _study(
        self, event: StudySubmitted | StudyStopped | StudyResumed | TrialAsked | TrialNotAsked
    ) -> Iterator[PoolEvent]:
        match event:
            case StudySubmitted():
                text = f"study {event.spec.study} submitted: {counted(event.spec.trials, 'trial')}"
            case StudyStopped():
                text = f"study {event.study} {event.reason}"
            case StudyResumed():
                text = f"study {event.study} continues"
            case TrialAsked():
                given = ", ".join(f"{name}={value}" for name, value in event.parameters)
                yield self._told(Topic.TRAINER, f"trial of {event.study}: {given}", event.spec.trainer)
                return
            case TrialNotAsked():
                why = "every point of the search space has been tried" if event.exhausted else headline(event.reason)
                text = f"no trial {event.number} of study {event.study}: {why}"
        yield self._told(Topic.POOL, text)

    def _group(self, event: Event) -> Iterator[PoolEvent]:
        match event:
            case GroupFormed():
                nodes = self._members.pop((event.trainer, event.generation), ())
                whence = "" if event.resumed is None else " from a checkpoint" if event.resumed else " from scratch"
                text = f"training on {node_count(len(nodes))}{whence} at step {event.step}"
                yield self._told(Topic.GROUP, text, event.trainer, nodes)
            case GroupBroken():
                yield self._told(Topic.GROUP, f"its group broke: {headline(event.reason)}", event.trainer)
            case GroupPaused():
                yield self._told(Topic.GROUP, f"paused at step {event.step}", event.trainer)
            case GroupStalled():
                yield self._told(Topic.GROUP, f"its group stalls: {headline(event.reason)}", event.trainer)
            case Progress(rescale_s=float(pause_s)):
                yield self._told(Topic.GROUP, f"the change paused it for {pause_s:.2f} s", event.trainer)
            case _:
                pass

    def _pool(self, event: PoolChanged) -> Iterator[PoolEvent]:
        cause = f" ({event.cause})" if event.cause else ""
        if event.joined:
            yield self._told(Topic.NODE, f"{node_names(event.joined)} joined", None, event.joined)
        if event.leaving:
            self._leaving.update(event.leaving)
            yield self._told(Topic.NODE, f"{node_names(event.leaving)} got notice{cause}", None, event.leaving)
        announced = [node for node in event.lost if self._draining or node in self._leaving]
        lost = [node for node in event.lost if node not in announced]
        self._leaving.difference_update(event.lost)
        if announced:
            yield self._told(Topic.NODE, f"{node_names(announced)} left", None, announced)
        if lost:
            yield self._told(Topic.NODE, f"{node_names(lost)} lost without notice{cause}", None, lost)

    def _plan(self, event: PlanReady) -> Iterator[PoolEvent]:
        """Only what changes: many plans keep everything as it is, and a plan that arrives too late has no effect."""
        asked, held = self._asked or (None, {})
        if event.plan_id == asked:
            for trainer, count in event.plan.counts:
                if count != (before := held.get(trainer, 0)):
                    yield self._told(Topic.PLAN, plan_change(count, before), trainer)

    def _worker(self, event: WorkerReady | WorkerSlow | WorkerExited) -> Iterator[PoolEvent]:
        since_s = self._started_s.get((event.trainer, event.node))
        after = f" after {self._now_s - since_s:.1f} s" if since_s is not None else ""
        match event:
            case WorkerReady():
                text = f"ready on {event.node}{after}"
            case WorkerSlow():
                text = f"still starting on {event.node}{after}; the others do not wait for it"
            case WorkerExited(cause=ExitCause.STOPPED):
                self._started_s.pop((event.trainer, event.node), None)
                return
            case WorkerExited():
                self._started_s.pop((event.trainer, event.node), None)
                text = f"{event.cause} on {event.node}: {headline(event.detail)}"
        yield self._told(Topic.TRAINER, text, event.trainer, [event.node])

    def _command(self, command: Command) -> Iterator[PoolEvent]:
        match command:
            case Solve():
                self._asked = command.plan_id, command.problem.kept()
            case StartWorker():
                self._started_s[command.trainer, command.node] = self._now_s
                yield self._told(Topic.TRAINER, f"starts on {command.node}", command.trainer, [command.node])
            case FormGroup():
                self._members[command.trainer, command.generation] = command.members
            case SetNodeAside():
                text = f"{command.node} is set aside: {headline(command.reason)}"
                yield self._told(Topic.NODE, text, command.trainer, [command.node])
            case HoldTrainer():
                yield self._told(Topic.TRAINER, command.reason, command.trainer)
            case WarnOfBudget():
                yield self._told(Topic.TRAINER if command.trainer else Topic.POOL, command.reason, command.trainer)
            case CloseTrainer():
                told = command.outcome in (Outcome.FAILED, Outcome.STOPPED)
                why = f": {headline(command.reason)}" if told else ""
                yield self._told(Topic.TRAINER, f"{command.outcome}{why}", command.trainer)
            case _:
                pass

    def _told(
        self, kind: Topic, text: str, trainer: TrainerId | str | None = None, nodes: Sequence[NodeId] = ()
    ) -> PoolEvent:
        return PoolEvent(
            unix_s=self._began_s + self._now_s,
            at_s=self._now_s,
            kind=kind,
            trainer=trainer or None,
            nodes=list(nodes),
            event=self._seq,
            text=f"{trainer}: {text}" if trainer and kind is not Topic.NODE else text,
        )
