"""Each trainer over time, from a journal: its progress, its rescales, its ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pilot.core import commands, events
from pilot.core.ids import Generation, TrainerId
from pilot.core.pool.evidence import headline
from pilot.core.study.events import TrialAsked
from pilot.history.ledger import Ledger
from pilot.protocol.run_identity import AcceptedChange
from pilot.rundir.entries import Decision

POINTS_MAX = 2000
"""Beyond this, every second point is dropped: even a week's curve needs no more."""

START, PLANNED = "start", "planned"


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """A trainer's progress at ``at_s``; rate in samples/s, None if it is not known yet."""

    at_s: float
    step: int
    samples: int
    samples_per_s: float | None
    metrics: Mapping[str, float]


@dataclass(slots=True)
class Rescale:
    """At ``at_s`` a trainer went from ``before`` to ``after`` nodes, which are its group ``generation``.

    ``reason`` is :data:`START`, :data:`PLANNED`, or what ended the earlier group before this one was ready.
    ``paused_s`` is how long it did not train: measured by its ranks if the change was planned, else since the end of
    the earlier group. None if unknown, and for its first group.
    """

    at_s: float
    generation: Generation
    before: int
    after: int
    reason: str
    paused_s: float | None


@dataclass(slots=True)
class TrainerProgress:
    """One trainer's points and rescales, in time order."""

    points: list[ProgressPoint] = field(default_factory=list)
    rescales: list[Rescale] = field(default_factory=list)
    every: int = 1
    """One in this many reports became a point."""
    reports: int = 0
    ended_s: float | None = None

    def add(self, point: ProgressPoint) -> None:
        """Add a report: every one at first, and fewer of them once there are many."""
        self.reports += 1
        if self.reports % self.every:
            return
        self.points.append(point)
        if len(self.points) > POINTS_MAX:
            del self.points[::2]
            self.every *= 2

    def goes_back_to(self, step: int) -> None:
        """Drop the reports of steps after ``step``, which are done again."""
        while self.points and self.points[-1].step > step:
            self.points.pop()


class ProgressRecorder:
    """Records the progress ``of`` each trainer: call :meth:`note` for each decision, in the order of the journal.

    A trainer of the name of an earlier one that was removed has a new record.
    """

    def __init__(self) -> None:
        self.of: dict[TrainerId, TrainerProgress] = {}
        self._forming: dict[tuple[TrainerId, Generation], commands.FormGroup] = {}
        self._stopped_s: dict[TrainerId, float] = {}
        self._reasons: dict[TrainerId, str] = {}

    def note(self, now_s: float, event: events.Event, answer: Sequence[commands.Command]) -> None:
        """Take an ``event`` at ``now_s`` and the core's ``answer``."""
        match event:
            case events.TrainerSubmitted() | TrialAsked():
                self.of[event.spec.trainer] = TrainerProgress()
            case events.TrainerResumed() if event.trainer in self.of:
                self.of[event.trainer].ended_s = None
            case events.GroupFormed():
                self._formed(now_s, event)
            case events.GroupBroken() | events.GroupPaused():
                self._stopped_s.setdefault(event.trainer, now_s)
            case events.Progress() if event.trainer in self.of:
                self._progressed(now_s, event)
        for command in answer:
            match command:
                case commands.FormGroup():
                    self._forming[command.trainer, command.generation] = command
                case commands.PauseGroup():
                    self._reasons.setdefault(command.trainer, _reason(event, command))
                case commands.DissolveGroup():
                    self._forming.pop((command.trainer, command.generation), None)
                    self._stopped_s.setdefault(command.trainer, now_s)
                    self._reasons.setdefault(command.trainer, _reason(event, command))
                case commands.HoldTrainer():
                    self._reasons[command.trainer] = headline(command.reason)
                case commands.CloseTrainer():
                    self.of[command.trainer].ended_s = now_s

    def _formed(self, now_s: float, event: events.GroupFormed) -> None:
        group = self._forming.pop((event.trainer, event.generation), None)
        if group is None:
            return
        progress, stopped_s = self.of[event.trainer], self._stopped_s.pop(event.trainer, None)
        reason, rescales = self._reasons.pop(event.trainer, "unknown"), progress.rescales
        if not rescales:
            reason, stopped_s = START, None
        elif group.previous is not None and stopped_s is None:
            reason = PLANNED
        progress.goes_back_to(event.step)
        before = rescales[-1].after if rescales else 0
        paused_s = None if stopped_s is None else now_s - stopped_s
        rescales.append(Rescale(now_s, event.generation, before, len(group.members), reason, paused_s))

    def _progressed(self, now_s: float, event: events.Progress) -> None:
        """Take a report of the group that trains; one of an earlier group is late."""
        progress = self.of[event.trainer]
        if not progress.rescales or progress.rescales[-1].generation != event.generation:
            return
        progress.add(ProgressPoint(now_s, event.step, event.samples, event.samples_per_s, dict(event.metrics)))
        if event.rescale_s is not None and progress.rescales[-1].reason == PLANNED:
            progress.rescales[-1].paused_s = event.rescale_s


def _reason(event: events.Event, command: commands.PauseGroup | commands.DissolveGroup) -> str:
    """Why an ``event`` ended a group, in a few words."""
    match event:
        case events.PoolChanged():
            return "nodes lost" if event.lost else "preemption notice"
        case events.TrainerHeld() | events.TrainerCancelled() | events.DrainRequested():
            return event.reason
        case events.PlanReady():
            return "no nodes by plan"
    return headline(command.reason)


def ledgers(decisions: Iterable[Decision]) -> dict[TrainerId, Ledger]:
    """The ledger of every trainer in a journal, in submission order. The coordinator has none: ledgers grow with every
    generation, and no decision depends on them.
    """
    found: dict[TrainerId, Ledger] = {}
    for decision in decisions:
        match decision.event:
            case events.TrainerSubmitted() | TrialAsked() as came:
                found[came.spec.trainer] = Ledger()
            case events.GroupFormed() as formed if formed.trainer in found:
                ledger = found[formed.trainer]
                ledger.began(formed.generation, formed.step)
                ledger.identity = dict(formed.identity)
                ledger.accepted = tuple(AcceptedChange(*change) for change in formed.accepted)
            case events.Progress() as progress if progress.trainer in found:
                found[progress.trainer].add(progress.ledger)
            case events.TrainerFinished() as finished if finished.trainer in found:
                found[finished.trainer].finished_step = finished.step
            case events.TrainerResumed() as resumed if resumed.trainer in found:
                found[resumed.trainer].finished_step = None
    return found
