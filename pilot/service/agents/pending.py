"""The asynchronous commands that are waiting for their completion, and since when.

They are derived from the same (event, commands) as the journal, so a restart restores them from there. An event about
something that is not pending is stale or repeated: the driver drops it, so every command completes exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from pilot.core import commands, events
from pilot.core.commands import Command
from pilot.core.ids import Generation, NodeId, StudyId, TrainerId
from pilot.core.study.events import TrialAsked, TrialNotAsked, TrialTold

On = tuple[TrainerId, NodeId]
Of = tuple[TrainerId, Generation]
Number = tuple[StudyId, int]
C = TypeVar("C")

GROUPS_KEPT = 16
"""The last message of an earlier group's leader arrives while one of the next few groups forms or trains."""


@dataclass(frozen=True, slots=True)
class Given(Generic[C]):
    """A ``command``, when it was given, and the number of the journal entry that has it."""

    command: C
    since_s: float
    event: int = 0


@dataclass(slots=True)
class PendingCommands:
    """The waiting commands, by what completes them.

    ``slow`` are the workers reported to be slow to start. ``groups`` are each open trainer's newest :data:`GROUPS_KEPT`
    ordered groups, including those that have formed; ``released`` are the nodes that were ordered to leave; ``asking``
    and ``telling`` are the commands for the samplers of studies. All of it is plain data, so that it can be part of a
    snapshot.
    """

    starting: dict[On, Given[commands.StartWorker]] = field(default_factory=dict)
    stopping: dict[On, Given[commands.StopWorker]] = field(default_factory=dict)
    writing: dict[On, Given[commands.WriteCheckpoint]] = field(default_factory=dict)
    checking: dict[On, Given[commands.CheckScript]] = field(default_factory=dict)
    forming: dict[Of, Given[commands.FormGroup]] = field(default_factory=dict)
    pausing: dict[Of, Given[commands.PauseGroup]] = field(default_factory=dict)
    examining: dict[Of, Given[commands.ExamineGroup]] = field(default_factory=dict)
    slow: dict[On, None] = field(default_factory=dict)
    solve: commands.Solve | None = None
    groups: dict[Of, commands.FormGroup] = field(default_factory=dict)
    released: dict[NodeId, Given[commands.ReleaseNode]] = field(default_factory=dict)
    asking: dict[Number, commands.AskTrial] = field(default_factory=dict)
    telling: dict[Number, commands.TellTrial] = field(default_factory=dict)

    @property
    def of_workers(self) -> tuple[dict[On, Any], ...]:
        """The commands to single workers."""
        return self.starting, self.stopping, self.writing, self.checking

    @property
    def of_groups(self) -> tuple[dict[Of, Any], ...]:
        """The commands to groups."""
        return self.forming, self.pausing, self.examining

    def note(self, now_s: float, event: events.Event, given: Sequence[Command], entry: int = 0) -> None:
        """The core gave these commands for ``event``, which is in the journal's ``entry``."""
        self._completed(event)
        for command in given:
            self._given(Given(command, now_s, entry))

    def restart(self, now_s: float) -> None:
        """Do not count the time in which the coordinator was down."""
        all_waiting: tuple[dict[Any, Given[Any]], ...] = (*self.of_workers, *self.of_groups)
        for waiting in all_waiting:
            waiting.update({key: replace(given, since_s=now_s) for key, given in waiting.items()})

    def on(self, node: NodeId, since_s: float) -> list[Given[Any]]:
        """Commands that have waited for ``node`` since ``since_s``, and can be sent again."""
        out: list[Given[Any]] = []
        for waiting in self.of_workers:
            out += [given for (_, where), given in waiting.items() if where == node and given.since_s <= since_s]
        pauses = [given for given in self.pausing.values() if given.since_s <= since_s]
        out += [
            replace(given, command=replace(given.command, members=(node,)))
            for given in pauses
            if node in given.command.members
        ]
        return out + [given for where, given in self.released.items() if where == node]

    def _given(self, given: Given[Any]) -> None:
        match given.command:
            case commands.Solve() as solve:
                self.solve = solve
            case commands.StartWorker(trainer, node):
                self.slow.pop((trainer, node), None)
                self.starting[trainer, node] = given
            case commands.StopWorker(trainer, node):
                self.starting.pop((trainer, node), None)
                self.writing.pop((trainer, node), None)
                self.stopping[trainer, node] = given
            case commands.WriteCheckpoint(trainer, node):
                self.writing[trainer, node] = given
            case commands.CheckScript(trainer, node):
                self.checking[trainer, node] = given
            case commands.FormGroup(trainer, generation) as group:
                self.forming[trainer, generation] = given
                self.groups[trainer, generation] = group
                self.groups.pop((trainer, Generation(generation - GROUPS_KEPT)), None)
            case commands.PauseGroup(trainer, generation):
                self.pausing[trainer, generation] = given
            case commands.ExamineGroup(trainer, generation):
                self.examining[trainer, generation] = given
            case commands.DissolveGroup(trainer, generation):
                _drop(self.of_groups, (trainer, generation))
            case commands.ReleaseNode(node):
                self.released[node] = given
            case commands.CloseTrainer(trainer):
                self._trainer_ended(trainer)
            case commands.AskTrial() as ask:
                self.asking[ask.study, ask.number] = ask
            case commands.TellTrial() as tell:
                self.telling[tell.study, tell.number] = tell

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
                _drop(self.of_workers, (event.trainer, event.node))
            case events.CheckpointWritten():
                self.writing.pop((event.trainer, event.node), None)
            case events.ScriptChecked():
                self.checking.pop((event.trainer, event.node), None)
            case events.GroupFormed():
                self.forming.pop((event.trainer, event.generation), None)
            case events.GroupExamined():
                self.examining.pop((event.trainer, event.generation), None)
            case events.GroupBroken(silent=()) | events.GroupPaused():  # the core may keep one with silent members
                _drop(self.of_groups, (event.trainer, event.generation))
            case events.PoolChanged():
                self._nodes_lost(event.lost)
            case TrialAsked() | TrialNotAsked():
                self.asking.pop((event.study, event.number), None)
            case TrialTold():
                self.telling.pop((event.study, event.number), None)
            case _:
                pass

    def _nodes_lost(self, nodes: Iterable[NodeId]) -> None:
        gone = set(nodes)
        for node in gone:
            self.released.pop(node, None)
        for waiting in (*self.of_workers, self.slow) if gone else ():
            _drop([waiting], *(key for key in waiting if key[1] in gone))

    def _trainer_ended(self, trainer: TrainerId) -> None:
        all_waiting: tuple[dict[Any, Any], ...] = (*self.of_workers, *self.of_groups, self.slow, self.groups)
        for waiting in all_waiting:
            _drop([waiting], *(key for key in waiting if key[0] == trainer))


def _drop(all_waiting: Iterable[dict[Any, Any]], *keys: Any) -> None:
    for waiting in all_waiting:
        for key in keys:
            waiting.pop(key, None)
