"""A world around the core for tests: it keeps the core's commands, checks that they make sense, and answers on demand.

Everything asynchronous stays pending until the test completes or fails it, in any order, so that the core meets every
interleaving that a real driver could produce.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from pilot.core import commands, events
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.ids import Generation, NodeId, PlanId, StudyId, TrainerId
from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem
from pilot.core.study import events as study_events
from pilot.core.trainer.proof import ProofState
from pilot.core.trainer.reconcile import reconcile
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Trainer
from pilot.service.agents.pending import PendingCommands
from tests.invariants import violations

_OnNode = commands.StartWorker | commands.StopWorker | commands.WriteCheckpoint | commands.CheckScript
_OfGroup = commands.FormGroup | commands.PauseGroup | commands.ExamineGroup
Asynchronous = _OnNode | _OfGroup | commands.Solve | commands.DrainPool | commands.AskTrial | commands.TellTrial

Given = TypeVar("Given")


def random_plan(problem: Problem, rng: random.Random) -> Plan:
    """Any feasible plan: the core must cope with all of them."""
    waiting = [c.trainer for c in problem.candidates if not c.current_nodes and c.pin is None]
    first_out = rng.choice([*waiting, None]) if problem.queue_share < 1 else None
    out = waiting[waiting.index(first_out) :] if first_out is not None else []
    there = tuple(c for c in problem.candidates if c.trainer not in out)
    made = _plan(
        replace(problem, candidates=there), lambda c, left: rng.choice([n for n in range(left + 1) if c.allows(n)])
    )
    return replace(made, first_out=first_out)


def generous_plan(problem: Problem) -> Plan:
    """First come, first served, as much as each can use: leaves no trainer without nodes needlessly."""
    return _plan(problem, Candidate.most_within)


def _plan(problem: Problem, choose: Callable[[Candidate, int], int]) -> Plan:
    least = {c.trainer: c.min_nodes if c.must_run else 0 for c in problem.candidates if c.pin is None}
    left, counts = problem.nodes - sum(least.values()) - sum(c.pin or 0 for c in problem.candidates), {}
    for candidate in problem.candidates:
        mine = least.get(candidate.trainer, 0)
        counts[candidate.trainer] = candidate.pin if candidate.pin is not None else choose(candidate, left + mine)
        left -= counts[candidate.trainer] - mine if candidate.pin is None else 0
    return Plan(PlanStatus.OPTIMAL, tuple(counts.items()), problem.objective(counts))


class World:
    """The core, pending commands, and the truth about nodes and workers."""

    def __init__(self, config: CoordinatorConfig | None = None) -> None:
        self.config = config or CoordinatorConfig(max_parallel_trainers=3, grace_s=0.0)
        self.core = Coordinator(self.config)
        self.now_s = 0.0
        self.nodes: list[NodeId] = []
        self.sick: set[NodeId] = set()
        self.broken_scripts: set[TrainerId] = set()
        self.told: dict[tuple[StudyId, int], float | None] = {}
        self.reports: dict[TrainerId, list[float]] = {}
        self.space = 20
        self.workers: dict[tuple[TrainerId, NodeId], str] = {}
        self.allowed_s: dict[tuple[TrainerId, NodeId], float] = {}
        self.pending: list[Asynchronous] = []
        self.books = PendingCommands()
        self.generations: dict[TrainerId, int] = {}
        self.steps: dict[TrainerId, int] = {}
        self.saved: dict[TrainerId, int] = {}
        self.closed: list[TrainerId] = []
        self.released: set[NodeId] = set()
        self.history: list[tuple[float, events.Event, list[commands.Command]]] = []

    def send(self, event: events.Event) -> list[commands.Command]:
        """Pass ``event`` to the core, check the commands and keep those that are pending."""
        self.now_s += 1.0
        self._save(event)
        commands = self.core.handle(self.now_s, event)
        self.history.append((self.now_s, event, commands))
        self.books.note(self.now_s, event, commands)
        for command in commands:
            self._take(command)
        assert violations(self.core) == []
        for trainer in self.core.trainers.values():
            self._awaited(trainer)
        vacant = {n for n in self.core.pool.leaving if n not in self.core.pool.occupant}
        assert vacant <= self.released, "a node that leaves and has no worker is not let go"
        if isinstance(event, events.Progress | events.CheckpointPublished) and event.trainer in self.core.trainers:
            self._rests(event.trainer)
        return commands

    def _awaited(self, trainer: Trainer) -> None:
        """What a group waits for is pending, here and in the service's books."""
        own = [p for p in self.pending if isinstance(p, _OfGroup) and p.trainer == trainer.id]
        for kind, group, waits in (
            (commands.FormGroup, trainer.forming, trainer.forming is not None),
            (commands.PauseGroup, trainer.group, trainer.pausing),
        ):
            if waits and group is not None:
                assert [p for p in own if isinstance(p, kind) and p.generation == group.generation], "nobody answers"
                of = trainer.id, group.generation
                assert of in (self.books.forming if kind is commands.FormGroup else self.books.pausing)

    def _save(self, event: events.Event) -> None:
        """Record what checkpoints hold once ``event`` has happened."""
        match event:
            case events.CheckpointPublished():
                self.saved[event.trainer] = event.step
            case events.CheckpointWritten(error="") if event.node in self.core.trainers[event.trainer].writing:
                self.saved[event.trainer] = event.step
            case events.TrainerResumed(from_scratch=True):
                trainer = self.core.trainers[event.trainer]
                self.saved[trainer.id] = 0 if trainer.ended_early or trainer.rests else trainer.saved_step
            case _:
                pass

    def _rests(self, trainer: TrainerId) -> None:
        """Events that only measure a trainer leave nothing for it to do, so the core need not reconcile it."""
        pool, found = copy.deepcopy((self.core.pool, self.core.trainers[trainer]))
        assert reconcile(found, pool) == [], "a step changed what a trainer needs"

    def _take(self, command: commands.Command) -> None:
        match command:
            case commands.Solve() | commands.DrainPool():
                self._drop(lambda p: isinstance(p, type(command)))
            case commands.StartWorker():
                assert command.node in self.nodes, "a worker is started on a node that is gone"
                assert command.node not in self.core.trainers[command.trainer].evidence.aside, "it was set aside"
                assert not [n for _, n in self.workers if n == command.node], "two workers on one node"
                replica = self.core.trainers[command.trainer].replica_of(command.node)
                assert replica.index(command.node) == command.place
                assert len(replica) == self.core.trainers[command.trainer].spec.nodes_per_replica
                self.workers[command.trainer, command.node] = "starting"
            case commands.StopWorker():
                worker = command.trainer, command.node
                hastened = command.within_s < self.allowed_s.get(worker, 0.0)  # its script runs on after the loop
                assert self.workers[worker] != "stopping" or hastened, "a worker is stopped twice"
                self.workers[worker], self.allowed_s[worker] = "stopping", command.within_s
                self._drop(lambda p: _concerns(p, command.trainer, command.node))
            case commands.FormGroup():
                assert command.generation > self.generations.get(command.trainer, 0), "a generation did not rise"
                assert command.saved_step == self.saved.get(command.trainer, 0), "what was saved is forgotten"
                for node in command.members:
                    assert self.workers[command.trainer, node] == "ready", "a group with a worker that is not ready"
                self.generations[command.trainer] = command.generation
            case commands.DissolveGroup():
                self._drop(lambda p: _of_group(p, command.trainer, command.generation))
            case commands.CheckScript():
                trainer = self.core.trainers[command.trainer]
                assert trainer.members == (command.node,), "a script is checked beside others"
                checks = [p.trainer for p in self.pending if isinstance(p, commands.CheckScript)]
                assert trainer.id not in checks, "a script is checked twice at once"
            case commands.AskTrial():
                assert command.spec.trainer not in self.core.trainers, "a trial is asked for that is there"
            case commands.TellTrial():
                assert (command.study, command.number) not in self.told, "a trial is told twice"
                self.told[command.study, command.number] = command.value
            case commands.ExamineGroup():
                assert not [p for p in self.pending if p == command], "a group is examined twice at once"
            case commands.SetCheckpointInterval():
                assert self.workers[command.trainer, command.node] == "ready", "nobody there writes checkpoints"
                assert 0 < command.interval_s <= self.config.checkpoint_interval_s
            case commands.ReleaseNode():
                assert command.node in self.nodes
                assert not [n for _, n in self.workers if n == command.node], "a node with a worker is released"
                assert command.node not in self.released, "a node is released twice"
                self.released.add(command.node)
            case commands.SetNodeAside():
                assert command.until_s > self.now_s, "a node is set aside for no time"
                aside = {(node, trainer) for node, trainer, _ in self.core.blame.set_aside()}
                assert (command.node, command.trainer) in aside, "it is not set aside"
            case commands.MarkNodeSlow():
                assert command.slow is (command.node in self.core.pool.slow)
            case commands.HoldTrainer():
                assert self.core.trainers[command.trainer].held == command.reason
            case commands.WarnOfBudget():
                assert command.trainer is None or command.trainer in self.core.trainers
            case commands.CloseTrainer():
                assert command.trainer not in self.closed, "a trainer ends twice"
                assert not [t for t, _ in self.workers if t == command.trainer], "a trainer ends with workers"
                self.closed.append(command.trainer)
        if isinstance(command, Asynchronous):
            self.pending.append(command)

    def submit(self, name: str, *spec: object, **options: object) -> None:
        """A user submits a trainer of this specification."""
        self.send(events.TrainerSubmitted(TrainerSpec(TrainerId(name), *spec, **options)))

    def finish(self, name: TrainerId) -> None:
        """The loop of the training group, if there is one, ends."""
        if (group := self.core.trainers[name].group) is not None:
            self.send(events.TrainerFinished(name, group.generation, self.steps.get(name, 0), 0))

    def given(self, kind: type[Given], after: int = 0) -> list[Given]:
        """The commands of this kind that the core gave, after this many events."""
        return [c for _, _, commands in self.history[after:] for c in commands if isinstance(c, kind)]

    def lose_entries(self, trainer: TrainerId, beyond: int) -> None:
        """A restart finds that the journal lacks ``beyond`` generations of ``trainer``, and as many plans."""
        generation = self.core.trainers[trainer].generation + beyond
        self.send(events.EntriesLost(((trainer, Generation(generation)),), PlanId(self.core.plan_id + beyond)))
        self.generations[trainer] = max(generation, self.generations.get(trainer, 0))
        self.send(events.EntriesLost())

    def _drop(self, which: Callable[[Asynchronous], bool]) -> None:
        self.pending = [p for p in self.pending if not which(p)]

    def complete(self, index: int, plan: Callable[[Problem], Plan], ok: bool = True) -> None:
        """Answer the pending command ``index`` (modulo their number), with success or failure."""
        if self.pending:
            self.send(self._answer(self.pending.pop(index % len(self.pending)), plan, ok))

    def _not_formed(self, command: commands.FormGroup) -> events.GroupBroken:
        """Sometimes because the first member cannot load the state, or the last member cannot reach it."""
        trainer = self.core.trainers[command.trainer]
        if not any(map(trainer.holds_state, command.members)) and command.generation % 3 == 0:
            unloaded = events.Unloaded.DAMAGED if command.generation % 2 else events.Unloaded.UNREAD
            of, node = (command.trainer, command.generation), command.members[0]
            return events.GroupBroken(*of, "it is away", node, unloaded=unloaded)
        ends = (command.members[0], command.members[-1])
        unreached = (ends,) if ends[0] != ends[1] and command.generation % 2 == 0 else ()
        return events.GroupBroken(command.trainer, command.generation, "forming took too long", unreached=unreached)

    def _answer(self, command: Asynchronous, plan: Callable[[Problem], Plan], ok: bool) -> events.Event:
        match command:
            case commands.Solve():
                return events.PlanReady(command.plan_id, plan(command.problem))
            case commands.DrainPool():
                return events.DrainRequested(command.reason)
            case commands.StartWorker():
                return self._started(command) if ok else self.worker_dies(command.trainer, command.node)
            case commands.StopWorker():
                del self.workers[command.trainer, command.node]
                return events.WorkerExited(command.trainer, command.node, events.ExitCause.STOPPED)
            case commands.FormGroup():
                if ok:
                    step = self.steps.get(command.trainer, 0)
                    has_state = any(map(self.core.trainers[command.trainer].holds_state, command.members))
                    return events.GroupFormed(command.trainer, command.generation, step, None if has_state else step)
                return self._not_formed(command)
            case commands.PauseGroup():
                if ok:
                    return events.GroupPaused(command.trainer, command.generation, self.steps.get(command.trainer, 0))
                return events.GroupBroken(command.trainer, command.generation, "pausing took too long")
            case commands.ExamineGroup():
                seen = events.StallFinding.HERE if ok else events.StallFinding.WAITS
                return events.GroupExamined(
                    command.trainer, command.generation, tuple((n, seen) for n in command.members)
                )
            case commands.AskTrial():
                if ok:
                    parameters = (("lr", 0.1 * command.number),)
                    return study_events.TrialAsked(command.study, command.number, command.spec, parameters)
                exhausted = command.number > self.space
                return study_events.TrialNotAsked(
                    command.study, command.number, "no answer", again=True, exhausted=exhausted
                )
            case commands.CheckScript():
                failed = (ProofState.DIFFERS, ProofState.UNCHECKED)[command.trainer < "t2"]
                result = ProofState.PASSED if ok else failed
                return events.ScriptChecked(command.trainer, command.node, result, "as the test says")
            case commands.TellTrial():
                return study_events.TrialTold(command.study, command.number, "" if ok else "it was killed")
            case commands.WriteCheckpoint():
                error = "" if ok else "no space left on device"
                return events.CheckpointWritten(
                    command.trainer, command.node, self.steps.get(command.trainer, 0), error
                )

    def _started(self, command: commands.StartWorker) -> events.Event:
        if command.node in self.sick or command.trainer in self.broken_scripts:
            return self.worker_dies(command.trainer, command.node, events.ExitCause.RAISED)
        self.workers[command.trainer, command.node] = "ready"
        return events.WorkerReady(command.trainer, command.node)

    def worker_dies(
        self, trainer: TrainerId, node: NodeId, cause: events.ExitCause = events.ExitCause.DIED
    ) -> events.Event:
        """The process of ``trainer`` on ``node`` is gone; its pending commands will not be answered."""
        self.workers.pop((trainer, node))
        self._drop(lambda p: _concerns(p, trainer, node))
        return events.WorkerExited(trainer, node, cause, f"it {cause.value}")

    def join(self, count: int, prefix: str = "n") -> None:
        """``count`` new nodes join together."""
        new = [NodeId(f"{prefix}{len(self.history)}-{i}") for i in range(count)]
        self.nodes += new
        self.send(events.PoolChanged(joined=tuple(new)))

    def lose(self, nodes: list[NodeId]) -> None:
        """``nodes`` are lost together."""
        self.nodes = [n for n in self.nodes if n not in nodes]
        for trainer, node in [key for key in self.workers if key[1] in nodes]:
            del self.workers[trainer, node]
        gone = set(nodes)
        self._drop(lambda p: isinstance(p, _OnNode) and p.node in gone)
        self.send(events.PoolChanged(lost=tuple(nodes), cause="killed"))

    def step(self, trainer: TrainerId, samples_per_s: float = 100.0) -> None:
        """One step of the training group, if there is one."""
        group = self.core.trainers[trainer].group
        if group is not None:
            step = self.steps[trainer] = self.steps.get(trainer, 0) + 1
            self.send(events.Progress(trainer, group.generation, step, 0, 32 * step, samples_per_s))

    def report(self, trainer: TrainerId, value: float) -> None:
        """The training group, if there is one, reports its study's metric once more."""
        group = self.core.trainers[trainer].group
        if group is not None:
            self.reports.setdefault(trainer, []).append(value)
            reports = tuple(enumerate(self.reports[trainer], start=1))
            step = self.steps.get(trainer, 0)
            self.send(events.Progress(trainer, group.generation, step, 0, 32 * step, reports=reports))

    def stall(self, trainer: TrainerId) -> None:
        """A member of the group waits too long for the others."""
        group = self.core.trainers[trainer].group or self.core.trainers[trainer].forming
        if group is not None:
            self.send(events.GroupStalled(trainer, group.generation, f"{group.members[0]} has waited 5 s", 5.0))

    def fall_silent(self, trainer: TrainerId, rng: random.Random) -> None:
        """Members of one of its groups do not answer. If the core goes on without them, others hold the state."""
        groups = self.core.trainers[trainer].groups
        if not groups:
            return
        group = rng.choice(groups)
        silent = tuple(rng.sample(group.members, rng.randint(1, len(group.members))))
        given = self.send(events.GroupBroken(trainer, group.generation, "no answer", silent=silent))
        stopped = {c.node for c in given if isinstance(c, commands.StopWorker) and c.kill}
        holders = self.core.trainers[trainer].holders()
        assert not given or (stopped.issuperset(silent) and holders), "a state was given up"

    def slow(self, trainer: TrainerId, node: NodeId) -> None:
        """A worker takes too long to get warm; for a warm worker, the event is stale."""
        self.send(events.WorkerSlow(trainer, node))

    def load(self, trainer: TrainerId, node: NodeId, version: str) -> None:
        """A worker has loaded a file of the user's; for one that is stopping, the event is stale."""
        self.send(events.CodeLoaded(trainer, node, (("/lib.py", version),)))

    def pass_time(self, seconds: float) -> None:
        """Whatever was set aside before then is retried."""
        self.now_s += seconds
        for event in self.core.due(self.now_s):
            self.send(event)

    def resume(self, trainer: TrainerId, *, from_scratch: bool = False) -> None:
        """It is resumed after its end, with a fixed script; or, held, from scratch."""
        self.broken_scripts.discard(trainer)
        if self.core.trainers[trainer].ended_early:
            self.closed.remove(trainer)
        self.send(events.TrainerResumed(trainer, from_scratch=from_scratch))

    def publish(self, trainer: TrainerId, alone_s: float) -> None:
        """One of its periodic checkpoints was written."""
        self.send(events.CheckpointPublished(trainer, self.steps.get(trainer, 0), alone_s))

    def settle(self, plan: Callable[[Problem], Plan] = generous_plan) -> None:
        """Answer everything with success until nothing is pending, which must happen eventually."""
        for _ in range(10_000):
            if not self.pending:
                return
            self.complete(0, plan)
        raise AssertionError(f"the core does not come to rest: {self.pending}")


def _concerns(pending: Asynchronous, trainer: TrainerId, node: NodeId) -> bool:
    return isinstance(pending, _OnNode) and (pending.trainer, pending.node) == (trainer, node)


def _of_group(pending: Asynchronous, trainer: TrainerId, generation: Generation) -> bool:
    return isinstance(pending, _OfGroup) and (pending.trainer, pending.generation) == (trainer, generation)
