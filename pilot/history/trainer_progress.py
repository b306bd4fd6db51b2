"""The course of each trainer over time, from a journal: its progress, its node changes, its ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pilot.core.commands import CloseTrainer, Command, DissolveGroup, FormGroup
from pilot.core.events import (
    Event,
    GroupBroken,
    GroupFormed,
    GroupPaused,
    Progress,
    TrainerFinished,
    TrainerResumed,
    TrainerSubmitted,
)
from pilot.core.ids import Generation, TrainerId
from pilot.core.study.events import TrialAsked
from pilot.core.trainer.run_identity import AcceptedChange
from pilot.history.ledger import Ledger
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


@dataclass(frozen=True, slots=True)
class Rescale:
    """At ``at_s`` a trainer went from ``before`` to ``after`` nodes.

    ``paused_s`` is how long it did not train: measured by its ranks if the change was planned, else since the end of
    the earlier group. None if unknown, and for its first group.
    """

    at_s: float
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


class Courses:
    """Call :meth:`note` for each decision, in the order of the journal."""

    def __init__(self) -> None:
        self.of: dict[TrainerId, TrainerProgress] = {}
        self._forming: dict[tuple[TrainerId, Generation], FormGroup] = {}
        self._nodes: dict[TrainerId, int] = {}
        self._stopped_s: dict[TrainerId, float] = {}
        self._planned: dict[tuple[TrainerId, Generation], int] = {}

    def note(self, now_s: float, event: Event, commands: Sequence[Command]) -> None:
        """``event`` happened at ``now_s`` and the core answered with ``commands``."""
        match event:
            case TrainerSubmitted() | TrialAsked():
                self.of[event.spec.trainer] = TrainerProgress()
            case TrainerResumed() if event.trainer in self.of:
                self.of[event.trainer].ended_s = None
            case GroupFormed():
                self._formed(now_s, event)
            case GroupBroken() | GroupPaused():
                self._stopped_s.setdefault(event.trainer, now_s)
            case Progress():
                self._progressed(now_s, event)
            case _:
                pass
        for command in commands:
            if isinstance(command, FormGroup):
                self._forming[command.trainer, command.generation] = command
            elif isinstance(command, DissolveGroup):
                self._forming.pop((command.trainer, command.generation), None)
                self._stopped_s.setdefault(command.trainer, now_s)
            elif isinstance(command, CloseTrainer):
                self.of[command.trainer].ended_s = now_s

    def _formed(self, now_s: float, event: GroupFormed) -> None:
        group = self._forming.pop((event.trainer, event.generation), None)
        if group is None:
            return
        course, before, after = self.of[event.trainer], self._nodes.get(event.trainer, 0), len(group.members)
        stopped_s = self._stopped_s.pop(event.trainer, None)
        planned = group.previous is not None and stopped_s is None
        if planned:
            self._planned[event.trainer, event.generation] = len(course.rescales)
        paused_s = now_s - stopped_s if stopped_s is not None and course.rescales else None
        course.rescales.append(Rescale(now_s, before, after, planned, paused_s))
        self._nodes[event.trainer] = after

    def _progressed(self, now_s: float, event: Progress) -> None:
        course = self.of.get(event.trainer)
        if course is None:
            return
        course.add(ProgressPoint(now_s, event.samples, event.samples_per_s, dict(event.metrics)))
        number = self._planned.get((event.trainer, event.generation))
        if event.rescale_s is not None and number is not None:
            old = course.rescales[number]
            course.rescales[number] = Rescale(old.at_s, old.before, old.after, old.planned, event.rescale_s)


def ledgers(decisions: Iterable[Decision]) -> dict[TrainerId, Ledger]:
    """The ledger of every trainer in a journal, in submission order, however the trainer ended. The coordinator keeps
    none: they grow with every generation, the journal contains all of them, and no decision depends on them.
    """
    found: dict[TrainerId, Ledger] = {}
    for decision in decisions:
        match decision.event:
            case TrainerSubmitted() | TrialAsked() as came:
                found[came.spec.trainer] = Ledger()
            case GroupFormed() as formed if formed.trainer in found:
                ledger = found[formed.trainer]
                ledger.began(formed.generation, formed.step)
                ledger.identity = dict(formed.identity)
                ledger.accepted = tuple(AcceptedChange(*change) for change in formed.accepted)
            case Progress() as progress if progress.trainer in found:
                found[progress.trainer].add(progress.ledger)
            case TrainerFinished() as finished if finished.trainer in found:
                found[finished.trainer].finished_step = finished.step
            case TrainerResumed() as resumed if resumed.trainer in found:
                found[resumed.trainer].finished_step = None
            case _:
                pass
    return found
