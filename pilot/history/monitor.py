"""Facts about the pool and its trainers, from the same (event, commands) as the journal, so a journal alone is enough.

The core counts facts that its decisions depend on (rescales, losses). Others that people ask for are here: rates,
stalls, metrics, solve times, node-seconds and U. Pure; decides nothing. All of it is plain data, part of a snapshot,
and none of it grows with time alone. Times are added up when the counted facts change, so an event costs only what it
touches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pilot.core import commands, events
from pilot.core.ids import Generation, NodeId, PlanId, TrainerId
from pilot.core.plan.problem import Plan, Problem
from pilot.core.pool.evidence import headline
from pilot.core.study import events as study_events
from pilot.history.records import OpenFor, SolveTimes, TrainerRecord
from pilot.history.words import plan_change
from pilot.protocol.run_identity import AcceptedChange
from pilot.rundir.entries import Decision

SETS_KEPT = 100
"""At most this many different sets of open trainers are distinguished. Beyond that there is no U, and only the total
time with trainers is known."""

REMARKS_KEPT = 20
WARM_UPS_KEPT = 20
SOLVES_KEPT = 1000
DECISIONS_KEPT = 20


@dataclass(slots=True)
class Monitor:
    """Call :meth:`note` for each decision, in the order of the journal."""

    now_s: float = 0.0  #: the latest time it has heard of
    trainers: dict[TrainerId, TrainerRecord] = field(default_factory=dict)  #: every trainer
    #: the trainers that have not ended, in submission order
    open: dict[TrainerId, None] = field(default_factory=dict)
    joined_s: dict[NodeId, float] = field(default_factory=dict)  #: when each node of the pool joined
    jobs: dict[NodeId, str] = field(default_factory=dict)  #: the scheduler's job of each of these nodes, if it has one
    occupant: dict[NodeId, TrainerId] = field(default_factory=dict)  #: the trainer whose worker is on each node
    solves: list[SolveTimes] = field(default_factory=list)  #: the times of the last plans
    solved: int = 0  #: how many plans were made
    failed_solves: int = 0  #: for how many problems there was none
    #: when the last plans changed a trainer's nodes, and how
    decisions: list[tuple[float, str]] = field(default_factory=list)
    warm_ups_s: list[float] = field(default_factory=list)  #: how long the last workers took to start
    last: tuple[Problem, Plan] | None = None  #: the last problem solved, and its plan
    node_seconds: float = 0.0  #: of the pool
    #: how long each set of trainers was open; with too many sets, only how long any was, under ()
    open_for_s: dict[tuple[TrainerId, ...], OpenFor] = field(default_factory=dict)
    settled_s: float = 0.0  #: the time up to which those two are counted
    #: when workers not yet known to be warm were started
    starting_s: dict[tuple[TrainerId, NodeId], float] = field(default_factory=dict)
    #: for each trainer, the group that is training and those that are forming
    groups: dict[TrainerId, dict[Generation, commands.FormGroup]] = field(default_factory=dict)
    #: the problems being solved, and since when
    asked: dict[PlanId, tuple[Problem, float]] = field(default_factory=dict)
    pool_remarks: list[str] = field(default_factory=list)  #: remarks for people that are not about a trainer
    ended_kept: int = sys.maxsize  #: how many ended trainers ``trainers`` keeps

    @classmethod
    def of(cls, decisions: Iterable[Decision]) -> Monitor:
        """The monitor after all ``decisions`` of a journal."""
        monitor = cls()
        for decision in decisions:
            monitor.note(decision.now_s, decision.event, decision.commands)
        return monitor

    def note(self, now_s: float, event: events.Event, answer: Sequence[commands.Command]) -> None:
        """Take an ``event`` at ``now_s`` and the core's ``answer``."""
        self.now_s = max(now_s, self.now_s)
        self._event(event)
        for command in answer:
            self._command(command)

    def remark(self, now_s: float, note: Mapping[str, str | float | None]) -> None:
        """Take a note for people, about ``trainer`` if given; or a note that ``node`` belongs to scheduler ``job``.

        What ``failed`` is forgotten once it succeeds, and what keeps a process on the node ``holds`` once that has
        ended. A remark about what a trainer has trained is ``lasting``.
        """
        self.now_s = max(now_s, self.now_s)
        if "job" in note:
            self.jobs[NodeId(str(note.get("node", "")))] = str(note["job"])
            return
        text, trainer = str(note.get("text", "")), TrainerId(str(note.get("trainer", "")))
        record = self.trainers.get(trainer)
        if record is not None and note.get("failed") == "checkpoint":
            record.failed_checkpoint = text
            return
        if record is not None and note.get("holds"):
            record.holds[NodeId(str(note["holds"]))] = text
            return
        _add(record.remarks if record is not None else self.pool_remarks, text)
        if record is not None and note.get("failed") == "step":
            record.delayed = text
        if record is not None and note.get("lasting"):
            _add(record.lasting, text)

    def advance(self, now_s: float) -> None:
        """Account for the time until ``now_s``, in which nothing changed, before the sums are read."""
        self.now_s = max(now_s, self.now_s)
        self._settle()
        for trainer in self.open:
            self.trainers[trainer].settle(self.now_s)

    def _settle(self) -> None:
        """Account for the time since the last call, in which the pool and the open trainers did not change."""
        passed_s, self.settled_s = self.now_s - self.settled_s, self.now_s
        self.node_seconds += passed_s * len(self.joined_s)
        if self.open:
            there = tuple(self.open) if () not in self.open_for_s else ()
            passed = OpenFor(passed_s, passed_s * len(self.joined_s))
            self.open_for_s[there] = self.open_for_s.get(there, OpenFor()) + passed
            if len(self.open_for_s) > SETS_KEPT:
                self.open_for_s = {(): sum(self.open_for_s.values(), OpenFor())}

    # --- events and commands ---------------------------------------------------------------------------------------

    def _event(self, event: events.Event) -> None:
        match event:
            case events.PoolChanged():
                self._settle()
                self.joined_s.update(dict.fromkeys(event.joined, self.now_s))
                for node in event.lost:
                    self.joined_s.pop(node, None)
                    self._given_back(node)
                    self.jobs.pop(node, None)
            case events.TrainerSubmitted() | study_events.TrialAsked():
                self._settle()
                self.open[event.spec.trainer] = None
                self.trainers[event.spec.trainer] = TrainerRecord(self.now_s, settled_s=self.now_s)
            case events.TrainerResumed():
                self._resumed(event.trainer)
            case events.TrainerRemoved():
                self._removed(event.trainer)
            case events.PoolReopened():  # while it was down, it held no nodes and no trainer waited
                self.settled_s = self.now_s
                for trainer in self.open:
                    self.trainers[trainer].settled_s = self.now_s
            case events.PlanReady():
                self._planned(event)
            case events.PlanFailed():
                self.failed_solves += self.asked.pop(event.plan_id, None) is not None
            case events.WorkerReady():
                if (since_s := self.starting_s.pop((event.trainer, event.node), None)) is not None:
                    self.warm_ups_s.append(self.now_s - since_s)
                    del self.warm_ups_s[:-WARM_UPS_KEPT]
            case events.WorkerExited():
                self.starting_s.pop((event.trainer, event.node), None)
                self._given_back(event.node)
            case events.GroupFormed():
                self._formed(event)
            case events.GroupBroken() | events.GroupPaused():
                self._group_ended(event.trainer, event.generation)
            case events.Progress():
                self._progressed(event)
            case events.CheckpointPublished():
                if (writer := self.trainers.get(event.trainer)) is not None:
                    writer.failed_checkpoint = ""
            case events.TrainerFinished():
                record = self.trainers.get(event.trainer)
                if record is not None:
                    record.known_step = max(record.known_step, event.step)
            case _:
                pass

    def _command(self, command: commands.Command) -> None:
        match command:
            case commands.Solve():
                self.asked[command.plan_id] = (command.problem, self.now_s)
            case commands.StartWorker():
                self.starting_s[command.trainer, command.node] = self.now_s
                self.occupant[command.node] = command.trainer
                self.trainers[command.trainer].held_since_s[command.node] = self.now_s
            case commands.FormGroup():
                self.groups.setdefault(command.trainer, {})[command.generation] = command
            case commands.DissolveGroup():
                self._group_ended(command.trainer, command.generation)
            case commands.SetNodeAside():
                text = f"{command.node} was set aside: {headline(command.reason)}"
                self.remark(self.now_s, {"text": text, "trainer": command.trainer or ""})
            case commands.MarkNodeSlow():
                self.remark(self.now_s, {"text": command.reason, "trainer": ""})
            case commands.HoldTrainer():
                self.remark(self.now_s, {"text": f"it is {command.reason}", "trainer": command.trainer})
            case commands.WarnOfBudget():
                self.remark(self.now_s, {"text": command.reason, "trainer": command.trainer or ""})
            case commands.CloseTrainer():
                self._ended(command.trainer)
            case _:
                pass

    def _ended(self, trainer: TrainerId) -> None:
        self._settle()
        self.open.pop(trainer, None)
        self.groups.pop(trainer, None)
        record = self.trainers[trainer]
        record.settle(self.now_s)
        record.ended_s, record.nodes = self.now_s, 0
        ended = [name for name, known in self.trainers.items() if known.ended_s is not None]
        for name in ended[: max(0, len(ended) - self.ended_kept)]:
            del self.trainers[name]

    def _resumed(self, trainer: TrainerId) -> None:
        """A trainer that failed or was cancelled continues."""
        record = self.trainers.get(trainer)
        if record is not None and record.ended_s is not None:
            self._settle()
            self.open[trainer] = None
            self.trainers[trainer] = self.trainers.pop(trainer)  # moved to the end, as in the core
            record.ended_s, record.settled_s = None, self.now_s
            record.remarks.clear()

    def _removed(self, trainer: TrainerId) -> None:
        """Forget a trainer that has ended; U then covers the others, over the time in which they were open."""
        record = self.trainers.get(trainer)
        if record is None or record.ended_s is None:
            return
        del self.trainers[trainer]
        for there in [there for there in self.open_for_s if trainer in there]:
            others = tuple(name for name in there if name != trainer)
            open_for = self.open_for_s.pop(there)
            if others:
                self.open_for_s[others] = self.open_for_s.get(others, OpenFor()) + open_for

    def _given_back(self, node: NodeId) -> None:
        """No worker is on ``node`` any more."""
        trainer = self.occupant.pop(node, None)
        if trainer is not None:
            self.trainers[trainer].gives_back(node, self.jobs.get(node, ""), self.now_s)

    def _planned(self, event: events.PlanReady) -> None:
        asked = self.asked.pop(event.plan_id, None)
        if asked is not None:
            problem, asked_s = asked
            before = problem.kept()
            self.decisions += [
                (self.now_s, f"{trainer} {plan_change(count, had)}")
                for trainer, count in event.plan.counts
                if count != (had := before.get(trainer, 0))
            ]
            del self.decisions[:-DECISIONS_KEPT]
            self.last = (problem, event.plan)
            self.asked = {later: asked for later, asked in self.asked.items() if later > event.plan_id}
            self.solved += 1
            self.solves.append(SolveTimes(event.plan.build_s, event.plan.solve_s, self.now_s - asked_s))
            del self.solves[:-SOLVES_KEPT]

    def _formed(self, event: events.GroupFormed) -> None:
        groups = self.groups.get(event.trainer, {})
        group = groups.get(event.generation)
        if group is None:
            return
        for earlier in [generation for generation in groups if generation < event.generation]:
            del groups[earlier]
        record = self.trainers[event.trainer]
        record.settle(self.now_s)
        for accepted in event.accepted:
            text = f"{AcceptedChange(*accepted)} (accepted)"
            self.remark(self.now_s, {"text": text, "trainer": event.trainer, "lasting": "yes"})
        if event.resumed is None:
            record.redone_steps += max(0, record.known_step - event.step)
        record.known_step = max(record.known_step, event.step) if event.resumed is None else event.step
        record.generation, record.nodes, record.samples_per_s = event.generation, len(group.members), None
        record.started_s = self.now_s if record.started_s is None else record.started_s

    def _group_ended(self, trainer: TrainerId, generation: Generation) -> None:
        record = self.trainers.get(trainer)
        if record is None:
            return
        self.groups.get(trainer, {}).pop(generation, None)
        if record.generation == generation:
            record.settle(self.now_s)
            record.nodes = 0

    def _progressed(self, event: events.Progress) -> None:
        record = self.trainers.get(event.trainer)
        if record is None:
            return
        record.longest_stall_s = max(record.longest_stall_s, event.stall_s or 0.0)
        if event.generation != record.generation:
            return
        record.known_step = max(record.known_step, event.step)
        record.progress_s, record.delayed = self.now_s, ""
        record.metrics.update(event.metrics)
        if event.samples_per_s is not None:
            record.samples_per_s = event.samples_per_s
        group = self.groups.get(event.trainer, {}).get(event.generation)
        if event.rescale_s is not None and group is not None and group.previous is not None:
            record.settle(self.now_s)  # the pause of a planned switch was counted as training
            nodes = len(group.members)
            record.seconds_on[nodes] = max(0.0, record.seconds_on.get(nodes, 0.0) - event.rescale_s)


def _add(remarks: list[str], text: str) -> None:
    if text not in remarks:
        remarks.append(text)
        del remarks[:-REMARKS_KEPT]
