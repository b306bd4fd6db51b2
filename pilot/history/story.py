"""Events in sentences, made from a journal's entries: for ``pilot events``, the log and the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from pilot.core import commands, events
from pilot.core.ids import Generation, NodeId, PlanId, TrainerId
from pilot.core.pool.evidence import headline
from pilot.core.study import events as study_events
from pilot.history.words import counted, duration, node_count, node_names, plan_change
from pilot.protocol.pool_status import Answer
from pilot.rundir.entries import Decision, Entry

Sentence = tuple["Topic", str, TrainerId | None, Sequence[NodeId]]
"""Topic, text, and the trainer and the nodes concerned."""


class Topic(StrEnum):
    """The subject of a sentence."""

    NODE = "node"
    TRAINER = "trainer"
    PLAN = "plan"
    GROUP = "group"
    CHECKPOINT = "checkpoint"
    POOL = "pool"


class PoolEvent(Answer, frozen=True):
    """One event of a pool: each line of `pilot events --json` is one."""

    unix_s: float  #: when, in seconds since 1970
    at_s: float  #: when, in seconds on the pool's clock
    kind: Topic  #: what it is about
    trainer: str | None  #: the trainer concerned; null: none, or several
    nodes: list[str]  #: the nodes concerned; may be empty
    event: int  #: the number of its entry in the journal; agents' logs name it, too
    text: str  #: the same in words, which may change with any version


class Story:
    """Describes the entries of a journal; pass them to :meth:`events_of` in order.

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

    def events_of(self, entry: Entry) -> list[PoolEvent]:
        """Describe ``entry``; nothing if it is of no interest to people."""
        self._now_s, self._seq = entry.now_s, entry.seq
        return [self._event(*sentence) for sentence in self._sentences(entry)]

    def _event(self, kind: Topic, text: str, trainer: TrainerId | None, nodes: Sequence[NodeId]) -> PoolEvent:
        return PoolEvent(
            unix_s=self._began_s + self._now_s,
            at_s=self._now_s,
            kind=kind,
            trainer=trainer or None,
            nodes=list(nodes),
            event=self._seq,
            text=f"{trainer}: {text}" if trainer and kind is not Topic.NODE else text,
        )

    def _sentences(self, entry: Entry) -> Iterator[Sentence]:
        if isinstance(entry, Decision):
            yield from self._of_event(entry.event)
            for command in entry.commands:
                yield from self._of_command(command)
        elif text := str(entry.note.get("text", "")):
            trainer = TrainerId(str(entry.note.get("trainer", "")))
            yield Topic.TRAINER if trainer else Topic.POOL, text, trainer, ()

    def _of_event(self, event: events.Event) -> Iterator[Sentence]:
        match event:
            case events.PoolChanged():
                yield from self._pool(event)
            case events.TrainerSubmitted(spec):
                text = f"submitted, for {spec.min_nodes} to {node_count(spec.max_nodes)}"
                yield Topic.TRAINER, text, spec.trainer, ()
            case events.TrainerCancelled() | events.TrainerHeld():
                yield Topic.TRAINER, event.reason, event.trainer, ()
            case events.TrainerReleased():
                yield Topic.TRAINER, "released", event.trainer, ()
            case events.TrainerResumed():
                yield Topic.TRAINER, f"resumed{' from scratch' if event.from_scratch else ''}", event.trainer, ()
            case events.TrainerRemoved():
                yield Topic.TRAINER, "removed", event.trainer, ()
            case events.PoolReopened():
                self._draining = False
                yield Topic.POOL, "the pool is up again", None, ()
            case events.DrainRequested():
                self._draining = True
                yield Topic.POOL, f"the pool drains: {event.reason}", None, ()
            case events.PlanReady():
                yield from self._plan(event)
            case events.PlanFailed() if self._asked is not None and event.plan_id == self._asked[0]:
                yield Topic.PLAN, f"no plan: {headline(event.reason)}", None, ()
            case events.WorkerReady() | events.WorkerSlow() | events.WorkerExited():
                yield from self._worker(event)
            case events.CheckpointPublished():
                yield Topic.CHECKPOINT, f"checkpoint at step {event.step}", event.trainer, ()
            case events.CheckpointWritten(error=error) if error:
                yield Topic.CHECKPOINT, f"no checkpoint: {headline(error)}", event.trainer, [event.node]
            case events.ScriptChecked():
                yield Topic.TRAINER, f"script check: {event.result}: {event.line}", event.trainer, [event.node]
            case events.NodeRetried():
                whom = f" for {event.trainer}" if event.trainer else ""
                yield Topic.NODE, f"{event.node} is used{whom} again", event.trainer, [event.node]
            case events.NodeCleared():
                yield Topic.NODE, f"{event.node} was cleared", None, [event.node]
            case _:
                yield from self._group(event)
                yield from _study(event)

    def _group(self, event: events.Event) -> Iterator[Sentence]:
        match event:
            case events.GroupFormed():
                nodes = self._members.pop((event.trainer, event.generation), ())
                whence = "" if event.resumed is None else " from a checkpoint" if event.resumed else " from scratch"
                text = f"training on {node_count(len(nodes))}{whence} at step {event.step}"
                yield Topic.GROUP, text, event.trainer, nodes
            case events.GroupBroken():
                yield Topic.GROUP, f"its group broke: {headline(event.reason)}", event.trainer, ()
            case events.GroupPaused():
                yield Topic.GROUP, f"paused at step {event.step}", event.trainer, ()
            case events.GroupStalled():
                yield Topic.GROUP, f"its group stalls: {headline(event.reason)}", event.trainer, ()
            case events.Progress(rescale_s=float(pause_s)):
                yield Topic.GROUP, f"the change paused it for {pause_s:.2f} s", event.trainer, ()

    def _pool(self, event: events.PoolChanged) -> Iterator[Sentence]:
        cause = f" ({event.cause})" if event.cause else ""
        if event.joined:
            yield Topic.NODE, f"{node_names(event.joined)} joined", None, event.joined
        if event.noticed:
            self._leaving.update(event.noticed)
            yield Topic.NODE, f"{node_names(event.noticed)} got notice{cause}", None, event.noticed
        announced = [node for node in event.lost if self._draining or node in self._leaving]
        lost = [node for node in event.lost if node not in announced]
        self._leaving.difference_update(event.lost)
        if announced:
            yield Topic.NODE, f"{node_names(announced)} left", None, announced
        if lost:
            yield Topic.NODE, f"{node_names(lost)} lost without notice{cause}", None, lost

    def _plan(self, event: events.PlanReady) -> Iterator[Sentence]:
        """Only what changes: many plans keep everything as it is, and a plan that arrives too late has no effect."""
        asked, held = self._asked or (None, {})
        for trainer, count in event.plan.counts if event.plan_id == asked else ():
            if count != (before := held.get(trainer, 0)):
                yield Topic.PLAN, plan_change(count, before), trainer, ()

    def _worker(self, event: events.WorkerReady | events.WorkerSlow | events.WorkerExited) -> Iterator[Sentence]:
        since_s = self._started_s.get((event.trainer, event.node))
        after = f" after {self._now_s - since_s:.1f} s" if since_s is not None else ""
        match event:
            case events.WorkerReady():
                text = f"ready on {event.node}{after}"
            case events.WorkerSlow():
                text = f"still starting on {event.node}{after}; the others do not wait for it"
            case events.WorkerExited():
                self._started_s.pop((event.trainer, event.node), None)
                if event.cause is events.ExitCause.STOPPED:
                    return
                text = f"{event.cause} on {event.node}: {headline(event.detail)}"
        yield Topic.TRAINER, text, event.trainer, [event.node]

    def _of_command(self, command: commands.Command) -> Iterator[Sentence]:
        match command:
            case commands.Solve():
                self._asked = command.plan_id, command.problem.kept()
            case commands.StartWorker():
                self._started_s[command.trainer, command.node] = self._now_s
                yield Topic.TRAINER, f"starts on {command.node}", command.trainer, [command.node]
            case commands.StopWorker() if command.within_s:
                text = f"its loop is over; the code after it may run on {command.node} for {duration(command.within_s)}"
                yield Topic.TRAINER, text, command.trainer, [command.node]
            case commands.FormGroup():
                self._members[command.trainer, command.generation] = command.members
            case commands.SetNodeAside():
                whom = command.trainer or "all trainers"
                text = f"{command.node} is set aside for {whom}: {headline(command.reason)}"
                yield Topic.NODE, text, command.trainer, [command.node]
            case commands.MarkNodeSlow():
                yield Topic.NODE, command.reason, None, [command.node]
            case commands.HoldTrainer():
                yield Topic.TRAINER, command.reason, command.trainer, ()
            case commands.WarnOfBudget():
                yield Topic.TRAINER if command.trainer else Topic.POOL, command.reason, command.trainer, ()
            case commands.CloseTrainer(outcome=commands.Outcome.FAILED | commands.Outcome.STOPPED):
                yield Topic.TRAINER, f"{command.outcome}: {headline(command.reason)}", command.trainer, ()
            case commands.CloseTrainer():
                yield Topic.TRAINER, f"{command.outcome}", command.trainer, ()


def _study(event: events.Event) -> Iterator[Sentence]:
    match event:
        case study_events.StudySubmitted(spec):
            yield Topic.POOL, f"study {spec.study} submitted: {counted(spec.trials, 'trial')}", None, ()
        case study_events.StudyStopped():
            yield Topic.POOL, f"study {event.study} {event.reason}", None, ()
        case study_events.StudyResumed():
            yield Topic.POOL, f"study {event.study} continues", None, ()
        case study_events.TrialAsked():
            given = ", ".join(f"{name}={value}" for name, value in event.parameters)
            yield Topic.TRAINER, f"trial of {event.study}: {given}", event.spec.trainer, ()
        case study_events.TrialNotAsked():
            why = "every point of the search space has been tried" if event.exhausted else headline(event.reason)
            yield Topic.POOL, f"no trial {event.number} of study {event.study}: {why}", None, ()
