"""Each trainer over time, from a journal: its progress, its rescales, its ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pilot.core import commands, events
from pilot.core.ids import Generation, TrainerId
from pilot.core.study.events import TrialAsked
from pilot.history.ledger import Ledger
from pilot.protocol.run_identity import AcceptedChange
from pilot.rundir.entries import Decision

POINTS_MAX = 2000
"""Beyond this, every second point is dropped: even a week's curve needs no more."""


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """A trainer's progress at ``at_s``; rate in samples/s, None if it is not known yet."""

    at_s: float
    samples: int
    samples_per_s: float | None
    metrics: Mapping[str, float]


@dataclass(slots=True)
class Rescale:
    """At ``at_s`` a trainer went from ``before`` to ``after`` nodes, which are its group ``generation``.

    ``paused_s`` is how long it did not train: measured by its ranks if the change was planned, else since the end of
    the earlier group. None if unknown, and for its first group.
    """

    at_s: float
    generation: Generation
    before: int
    after: int
    planned: bool
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


class ProgressRecorder:
    """Records the progress ``of`` each trainer: call :meth:`note` for each decision, in the order of the journal."""

    def __init__(self) -> None:
        self.of: dict[TrainerId, TrainerProgress] = {}
        self._forming: dict[tuple[TrainerId, Generation], commands.FormGroup] = {}
        self._stopped_s: dict[TrainerId, float] = {}

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
                case commands.DissolveGroup():
                    self._forming.pop((command.trainer, command.generation), None)
                    self._stopped_s.setdefault(command.trainer, now_s)
                case commands.CloseTrainer():
                    self.of[command.trainer].ended_s = now_s

    def _formed(self, now_s: float, event: events.GroupFormed) -> None:
        group = self._forming.pop((event.trainer, event.generation), None)
        if group is None:
            return
        rescales, stopped_s = self.of[event.trainer].rescales, self._stopped_s.pop(event.trainer, None)
        planned = group.previous is not None and stopped_s is None
        paused_s = now_s - stopped_s if stopped_s is not None and rescales else None
        before = rescales[-1].after if rescales else 0
        rescales.append(Rescale(now_s, event.generation, before, len(group.members), planned, paused_s))

    def _progressed(self, now_s: float, event: events.Progress) -> None:
        progress = self.of[event.trainer]
        progress.add(ProgressPoint(now_s, event.samples, event.samples_per_s, dict(event.metrics)))
        for rescale in progress.rescales if event.rescale_s is not None else ():
            if rescale.planned and rescale.generation == event.generation:
                rescale.paused_s = event.rescale_s


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
