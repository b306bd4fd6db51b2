"""The asynchronous commands that are waiting for their completion, and their deadlines.

They are derived from the same (event, commands) as the journal, so a restart restores them from there. An event about
something that is not pending is stale or repeated: the driver drops it, so every command completes exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from pilot.core import events
from pilot.core.commands import (
    AskTrial,
    CheckScript,
    CloseTrainer,
    Command,
    DissolveGroup,
    ExamineGroup,
    FormGroup,
    PauseGroup,
    ReleaseNode,
    Solve,
    StartWorker,
    StopWorker,
    TellTrial,
    WriteCheckpoint,
)
from pilot.core.ids import Generation, NodeId, StudyId, TrainerId
from pilot.core.study.events import (
    TrialAsked,
    TrialNotAsked,
    TrialTold,
)

On = tuple[TrainerId, NodeId]
Of = tuple[TrainerId, Generation]
Number = tuple[StudyId, int]

GROUPS_KEPT = 16
"""The last message of an earlier group's leader arrives while one of the next few groups forms or trains."""


@dataclass(slots=True)
class PendingCommands:
    """The waiting commands, by what completes them; the value is (command, when it was given).

    ``slow`` are the workers reported to be slow to start. ``groups`` are each open trainer's newest :data:`GROUPS_KEPT`
    ordered groups, including those that have formed; ``released`` are the nodes that were told to leave; ``asking`` and
    ``telling`` is what waits for the samplers of studies. All of it is plain data, so that it can be part of a
    snapshot.
    """

    starting: dict[On, tuple[StartWorker, float]] = field(default_factory=dict)
    stopping: dict[On, tuple[StopWorker, float]] = field(default_factory=dict)
    forming: dict[Of, tuple[FormGroup, float]] = field(default_factory=dict)
    pausing: dict[Of, tuple[PauseGroup, float]] = field(default_factory=dict)
    looking: dict[Of, tuple[ExamineGroup, float]] = field(default_factory=dict)
    writing: dict[On, tuple[WriteCheckpoint, float]] = field(default_factory=dict)
    checking: dict[On, tuple[CheckScript, float]] = field(default_factory=dict)
    slow: dict[On, None] = field(default_factory=dict)
    solve: Solve | None = None
    groups: dict[Of, FormGroup] = field(default_factory=dict)
    released: dict[NodeId, ReleaseNode] = field(default_factory=dict)
    asking: dict[Number, AskTrial] = field(default_factory=dict)
    telling: dict[Number, TellTrial] = field(default_factory=dict)

    def note(self, now_s: float, event: events.Event, commands: Sequence[Command]) -> None:
        """The core returned ``commands`` for ``event``."""
        self._completed(event)
        for command in commands:
            self._given(now_s, command)

    def restart(self, now_s: float) -> None:
        """Do not count the time in which the coordinator was down."""
        on, of = (self.starting, self.stopping, self.writing, self.checking), (self.forming, self.pausing, self.looking)
        for waiting in (*on, *of):
            for key, (command, _) in waiting.items():
                waiting[key] = (command, now_s)  # type: ignore[index, assignment]  # each key goes back where it was

    def on(self, node: NodeId, since_s: float) -> list[Command]:
        """Commands that have waited for ``node`` since ``since_s``, and can be sent again."""
        out: list[Command] = []
        for waiting in (self.starting, self.stopping, self.writing, self.checking):
            out += [c for (_, where), (c, given_s) in waiting.items() if where == node and given_s <= since_s]
        pauses = [pause for pause, given_s in self.pausing.values() if given_s <= since_s]
        out += [replace(pause, members=(node,)) for pause in pauses if node in pause.members]
        return out + [release for where, release in self.released.items() if where == node]

    def _given(self, now_s: float, command: Command) -> None:
        match command:
            case Solve():
                self.solve = command
            case StartWorker():
                self.slow.pop((command.trainer, command.node), None)
                self.starting[command.trainer, command.node] = (command, now_s)
            case StopWorker():
                self.starting.pop((command.trainer, command.node), None)
                self.stopping[command.trainer, command.node] = (command, now_s)
                self.writing.pop((command.trainer, command.node), None)
            case FormGroup():
                of = (command.trainer, command.generation)
                self.forming[of] = (command, now_s)
                self.groups[of] = command
                self.groups.pop((command.trainer, Generation(command.generation - GROUPS_KEPT)), None)
            case PauseGroup():
                self.pausing[command.trainer, command.generation] = (command, now_s)
            case ExamineGroup():
                self.looking[command.trainer, command.generation] = (command, now_s)
            case DissolveGroup():
                self._group_ended((command.trainer, command.generation))
            case WriteCheckpoint():
                self.writing[command.trainer, command.node] = (command, now_s)
            case CheckScript():
                self.checking[command.trainer, command.node] = (command, now_s)
            case ReleaseNode():
                self.released[command.node] = command
            case CloseTrainer():
                self._trainer_ended(command.trainer)
            case AskTrial():
                self.asking[command.study, command.number] = command
            case TellTrial():
                self.telling[command.study, command.number] = command

    def _completed(self, event: events.Event) -> None:
        match event:
            case events.PlanReady() | events.PlanFailed():
                if self.solve is not None and self.solve.plan_id == event.plan_id:
                    self.solve = None
            case events.WorkerReady():
                self.starting.pop((event.trainer, event.node), None)
            case events.WorkerSlow():
                self.slow[event.trainer, event.node] = None
            case events.WorkerExited():
                for waiting in (self.starting, self.stopping, self.writing, self.checking):
                    waiting.pop((event.trainer, event.node), None)
            case events.GroupFormed():
                self.forming.pop((event.trainer, event.generation), None)
            case events.GroupBroken() | events.GroupPaused():
                self._group_ended((event.trainer, event.generation))
            case events.GroupExamined():
                self.looking.pop((event.trainer, event.generation), None)
            case events.CheckpointWritten():
                self.writing.pop((event.trainer, event.node), None)
            case events.ScriptChecked():
                self.checking.pop((event.trainer, event.node), None)
            case events.PoolChanged():
                self._nodes_lost(event.lost)
            case TrialAsked() | TrialNotAsked():
                self.asking.pop((event.study, event.number), None)
            case TrialTold():
                self.telling.pop((event.study, event.number), None)
            case _:
                pass

    def _group_ended(self, of: Of) -> None:
        for waiting in (self.forming, self.pausing, self.looking):
            waiting.pop(of, None)

    def _nodes_lost(self, nodes: Iterable[NodeId]) -> None:
        gone = set(nodes)
        for node in gone:
            self.released.pop(node, None)
        for waiting in (self.starting, self.stopping, self.writing, self.checking, self.slow) if gone else ():
            for key in [key for key in waiting if key[1] in gone]:
                del waiting[key]

    def _trainer_ended(self, trainer: TrainerId) -> None:
        on = self.starting, self.stopping, self.writing, self.checking, self.slow
        for waiting in (*on, self.forming, self.pausing, self.looking, self.groups):
            for key in [key for key in waiting if key[0] == trainer]:
                del waiting[key]  # type: ignore[arg-type]  # each key is of the dict that it came from
