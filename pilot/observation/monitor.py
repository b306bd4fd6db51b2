"""What the pool and its trainers did: kept from the same (event, commands) as the journal, so also from a journal
alone.

The core counts what it decides by (rescales, losses); here is what people ask for beyond that: rates, stalls, metrics,
solve times, node-seconds and U. Pure; decides nothing.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pilot.core.commands import CloseTrainer, Command, DissolveGroup, FormGroup, SetNodeAside, Solve, StartWorker
from pilot.core.events import (
    Event,
    GroupBroken,
    GroupFormed,
    GroupPaused,
    PlanFailed,
    PlanReady,
    PoolChanged,
    Progress,
    TrainerFinished,
    TrainerSubmitted,
    WorkerExited,
    WorkerReady,
)
from pilot.core.evidence import headline
from pilot.core.ids import Generation, NodeId, PlanId, TrainerId
from pilot.core.ledger import Ledger
from pilot.core.problem import Plan, Problem
from pilot.io.journal import Decision

REMARKS_KEPT = 20
WARM_UPS_KEPT = 20


@dataclass(slots=True)
class TrainerRecord:
    """One trainer. ``seconds_on`` is for how long it trained on so many nodes, its measured pauses taken off.

    ``nodes`` is the size of the group that trains, 0 where none does; ``known_step`` the highest step ever heard of.
    """

    submitted_s: float
    ended_s: float | None = None
    started_s: float | None = None
    nodes: int = 0
    generation: int = 0
    known_step: int = 0
    redone_steps: int = 0
    samples_per_s: float | None = None
    longest_stall_s: float = 0.0
    rescales_s: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    progress_s: float | None = None
    seconds_on: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    ledger: Ledger = field(default_factory=Ledger)
    remarks: deque[str] = field(default_factory=lambda: deque(maxlen=REMARKS_KEPT))


@dataclass(frozen=True, slots=True)
class SolveTimes:
    """One plan's times.

    Parameters
    ----------
    build_s : to build the problem
    solve_s : to solve it
    answer_s : from the question to the plan, processes and queues included
    """

    build_s: float
    solve_s: float
    answer_s: float


class Monitor:
    """Fed with :meth:`note` in the order of the journal."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.trainers: dict[TrainerId, TrainerRecord] = {}
        self.joined_s: dict[NodeId, float] = {}
        self.solves: list[SolveTimes] = []
        self.failed_solves = 0
        self.warm_ups_s: deque[float] = deque(maxlen=WARM_UPS_KEPT)
        self.last: tuple[Problem, Plan] | None = None
        self.node_seconds = 0.0
        self.open_for_s: defaultdict[tuple[TrainerId, ...], float] = defaultdict(float)
        """How long which trainers (in the order of submission) were there and not at their end."""
        self.open_node_seconds = 0.0
        self.starting_s: dict[tuple[TrainerId, NodeId], float] = {}
        """When workers that are not known to be warm were started."""
        self._forming: dict[tuple[TrainerId, Generation], FormGroup] = {}
        self._asked: dict[PlanId, tuple[Problem, float]] = {}
        self._remarks: dict[str, deque[str]] = {}

    @classmethod
    def of(cls, decisions: Iterable[Decision]) -> Monitor:
        """What a journal's ``decisions`` tell."""
        monitor = cls()
        for decision in decisions:
            monitor.note(decision.now_s, decision.event, decision.commands)
        return monitor

    @property
    def pool_remarks(self) -> list[str]:
        """What people should see and is about no trainer."""
        return list(self._remarks.get("", ()))

    def note(self, now_s: float, event: Event, commands: Sequence[Command]) -> None:
        """``event`` happened at ``now_s`` and the core answered ``commands``."""
        self.advance(now_s)
        self._happened(event)
        for command in commands:
            self._commanded(command)

    def remark(self, now_s: float, note: Mapping[str, str | float]) -> None:
        """A note for people; ``trainer`` says whose it is."""
        self.advance(now_s)
        text, trainer = str(note.get("text", "")), TrainerId(str(note.get("trainer", "")))
        record = self.trainers.get(trainer)
        remarks = record.remarks if record is not None else self._remarks.setdefault("", deque(maxlen=REMARKS_KEPT))
        if text not in remarks:
            remarks.append(text)

    def advance(self, now_s: float) -> None:
        """Account for the time until ``now_s``, in which nothing changed."""
        passed_s = max(0.0, now_s - self.now_s)
        self.now_s = max(now_s, self.now_s)
        self.node_seconds += passed_s * len(self.joined_s)
        there = tuple(t for t, record in self.trainers.items() if record.ended_s is None)
        if there:
            self.open_for_s[there] += passed_s
            self.open_node_seconds += passed_s * len(self.joined_s)
        for trainer in there:
            record = self.trainers[trainer]
            if record.nodes:
                record.seconds_on[record.nodes] += passed_s

    # --- events and commands ---------------------------------------------------------------------------------------

    def _happened(self, event: Event) -> None:
        match event:
            case PoolChanged():
                self.joined_s.update(dict.fromkeys(event.joined, self.now_s))
                for node in event.lost:
                    self.joined_s.pop(node, None)
            case TrainerSubmitted():
                self.trainers[event.spec.trainer] = TrainerRecord(self.now_s)
            case PlanReady():
                self._planned(event)
            case PlanFailed():
                self.failed_solves += self._asked.pop(event.plan_id, None) is not None
            case WorkerReady():
                if (since_s := self.starting_s.pop((event.trainer, event.node), None)) is not None:
                    self.warm_ups_s.append(self.now_s - since_s)
            case WorkerExited():
                self.starting_s.pop((event.trainer, event.node), None)
            case GroupFormed():
                self._formed(event)
            case GroupBroken() | GroupPaused():
                self._group_ended(event.trainer, event.generation)
            case Progress():
                self._progressed(event)
            case TrainerFinished():
                record = self.trainers.get(event.trainer)
                if record is not None:
                    record.known_step = max(record.known_step, event.step)
            case _:
                pass

    def _commanded(self, command: Command) -> None:
        match command:
            case Solve():
                self._asked[command.plan_id] = (command.problem, self.now_s)
            case StartWorker():
                self.starting_s[command.trainer, command.node] = self.now_s
            case FormGroup():
                self._forming[command.trainer, command.generation] = command
            case DissolveGroup():
                self._group_ended(command.trainer, command.generation)
            case SetNodeAside():
                text = f"{command.node} was set aside: {headline(command.reason)}"
                self.remark(self.now_s, {"text": text, "trainer": command.trainer or ""})
            case CloseTrainer():
                self._ended(command.trainer)
            case _:
                pass

    def _ended(self, trainer: TrainerId) -> None:
        record = self.trainers[trainer]
        record.ended_s, record.nodes = self.now_s, 0
        for of in [of for of in self._forming if of[0] == trainer]:
            del self._forming[of]

    def _planned(self, event: PlanReady) -> None:
        asked = self._asked.pop(event.plan_id, None)
        if asked is not None:
            problem, asked_s = asked
            self.last = (problem, event.plan)
            self.solves.append(SolveTimes(event.plan.build_s, event.plan.solve_s, self.now_s - asked_s))

    def _formed(self, event: GroupFormed) -> None:
        group = self._forming.get((event.trainer, event.generation))
        if group is None:
            return
        record = self.trainers[event.trainer]
        record.ledger.began(event.generation, event.step)
        if event.resumed is None:
            record.redone_steps += max(0, record.known_step - event.step)
        record.known_step = max(record.known_step, event.step) if event.resumed is None else event.step
        record.generation, record.nodes, record.samples_per_s = event.generation, len(group.members), None
        record.started_s = self.now_s if record.started_s is None else record.started_s

    def _group_ended(self, trainer: TrainerId, generation: Generation) -> None:
        record = self.trainers.get(trainer)
        if record is not None and record.generation == generation:
            record.nodes = 0

    def _progressed(self, event: Progress) -> None:
        record = self.trainers.get(event.trainer)
        if record is None:
            return
        record.ledger.add(event.ledger)
        record.longest_stall_s = max(record.longest_stall_s, event.stall_s or 0.0)
        if event.generation != record.generation:
            return
        record.known_step = max(record.known_step, event.step)
        record.progress_s = self.now_s
        record.metrics.update(event.metrics)
        if event.samples_per_s is not None:
            record.samples_per_s = event.samples_per_s
        if event.rescale_s is not None:
            self._rescaled(record, event)

    def _rescaled(self, record: TrainerRecord, event: Progress) -> None:
        """A planned switch paused the group while it counted as training."""
        assert event.rescale_s is not None
        record.rescales_s.append(event.rescale_s)
        group = self._forming.get((event.trainer, event.generation))
        if group is not None and group.previous is not None:
            nodes = len(group.members)
            record.seconds_on[nodes] = max(0.0, record.seconds_on[nodes] - event.rescale_s)
