"""The simulator's driver: the same core that runs live, on a virtual clock.

A trace and submissions make events; the core's commands take effect at once, except that a plan may take
``solver_latency_s``. All events of one virtual time are settled before progress is accounted, by the net change of each
trainer's nodes. Trainers whose curves the core does not know report their rates (:class:`Reports`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import assert_never

from pilot.core import commands, events
from pilot.core.commands import Command, Solve
from pilot.core.coordinator import Coordinator
from pilot.core.events import Event, Progress
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.problem import Plan, Problem
from pilot.core.study.events import TrialAsked, TrialTold
from pilot.core.trainer.proof import ProofState
from pilot.research.gpu_packing import GpuNodes
from pilot.research.sim.accounting import Account, Accounting, Counts
from pilot.research.sim.knowledge import MEASURED, TRUE_CURVES, Knowledge
from pilot.research.sim.records import Moment, Records
from pilot.research.sim.reports import Reports
from pilot.research.traces.changes import Change, types_of
from pilot.research.traces.workload import TrainerEnd, WorkloadRow


class Completions(StrEnum):
    """When the core learns of completions and arrivals."""

    AT_ONCE = "at-once"
    """At once (FreeTrain §3)."""
    AT_NODE_EVENTS = "at-node-events"
    """With the next change of the pool, as in the authors' replay code; a finished trainer's nodes idle until then."""


@dataclass(frozen=True, slots=True)
class SimConfig:
    """How a replay runs, apart from the core's decisions. An infinite ``until_s``: until no event is left."""

    until_s: float
    accounting: Accounting = Accounting.PAPER
    completions: Completions = Completions.AT_ONCE
    solver_latency_s: float = 0.0
    scale_up_delay_s: float = 0.0
    """More nodes take effect this much later (Huawei §5.5)."""
    knowledge: Knowledge = TRUE_CURVES
    """The scaling curves that the core knows."""
    measure_noise: float = 0.0
    """The relative standard deviation of a measured rate."""


class Simulation:
    """One replay. ``run`` may be stopped; ``records`` then end at ``now_s``."""

    def __init__(
        self,
        core: Coordinator,
        planner: Callable[[Problem], Plan],
        changes: Sequence[Change],
        submissions: Sequence[WorkloadRow],
        config: SimConfig,
    ) -> None:
        self.core = core
        self.config = config
        self.now_s = 0.0
        self.records = Records()
        self.accounts: dict[TrainerId, Account] = {}
        of_node = types_of(changes)
        self._types = tuple(dict.fromkeys(of.name for of in of_node.values())) or ("",)
        self._type = {node: self._types.index(of.name) for node, of in of_node.items()}
        self._planner = planner
        self._changes = deque(change for change in changes if change.time_s < config.until_s)
        self._submissions = deque(submissions)
        self._by_id = {submission.spec.trainer: submission for submission in submissions}
        self._running: dict[TrainerId, Account] = {}
        type_of = self._type if len(self._types) > 1 else {}
        self._reports = Reports(config.measure_noise, Random(config.knowledge.seed), type_of)
        self._pins: dict[TrainerId, int] = {}
        self._solve: Solve | None = None
        self._plan_due_s = math.inf

    def run(self, stop: Callable[[], bool], tick: Callable[[float], None]) -> bool:
        """Replay to ``until_s`` or to the end of the pool's budget, passing each virtual time to ``tick``; returns
        False if ``stop`` ended it before."""
        while (next_s := self._next_s()) < self.config.until_s and not self._drained:
            if stop():
                return False
            self._step(next_s)
            tick(next_s)
        self._finish_at(self.now_s if self._drained or math.isinf(self.config.until_s) else self.config.until_s)
        return True

    @property
    def submitted(self) -> int:
        """How many trainers there are, now or later."""
        return len(self._by_id)

    @property
    def ended(self) -> int:
        """How many of them have ended."""
        return sum(account.ended_s is not None for account in self.accounts.values())

    @property
    def _drained(self) -> bool:
        """Whether the budget has ended the pool."""
        return self.core.draining and not len(self.core.pool)

    def _next_s(self) -> float:
        at_s = self._changes[0].time_s if self._changes else math.inf
        at_s = min(at_s, self._plan_due_s, max(self.now_s, self.core.due_s()), self._reports.due_s())
        if self.config.completions is Completions.AT_NODE_EVENTS:
            return at_s
        submitted_s = self._submissions[0].submit_s if self._submissions else math.inf
        ended_s = min((account.ends_s() for account in self._running.values()), default=math.inf)
        return max(self.now_s, min(at_s, submitted_s, ended_s))

    def _step(self, now_s: float) -> None:
        """Process the events of one virtual time."""
        gained = self._advance(now_s)
        change = self._changes.popleft() if self._changes and self._changes[0].time_s <= now_s else Change(now_s)
        lost = self._lost(change)
        self._settle(self._events(change))
        self._account(change, lost, gained)

    def _advance(self, now_s: float) -> float:
        """Advance all trainers to ``now_s``; returns the work done since the last time."""
        due = [account for account in self._running.values() if account.ends_s() <= now_s]
        weight = self.records.weight
        gained = sum(account.advance(now_s) * weight(account.submission) for account in self._running.values())
        for account in due:
            # Despite rounding errors: this is the time at which it is done.
            account.done = account.submission.samples
        self.now_s = now_s
        return gained

    def _events(self, change: Change) -> list[Event]:
        """The events that the core gets at this time."""
        changed = events.PoolChanged(
            change.joined, lost=change.left, cause="trace", ends=change.ends, types=change.types
        )
        pool = [changed] if change.joined or change.left else []
        waits = not pool and self.config.completions is Completions.AT_NODE_EVENTS
        if waits and min(self.core.due_s(), self._reports.due_s()) > self.now_s:
            return []
        reports = self._reports.take(self.now_s, self._running, self.core.trainers)
        heard: list[Event] = [*self._finished(), *self._progress(), *reports, *self._submitted()]
        return [*heard, *pool, *self.core.due(self.now_s)]

    def _finished(self) -> list[Event]:
        done = [trainer for trainer, account in self._running.items() if account.is_done()]
        for trainer in done:
            self._running.pop(trainer).ended_s = self.now_s
        return [self._end_of(trainer) for trainer in done]

    def _end_of(self, name: TrainerId) -> Event:
        row, trainer = self._by_id[name], self.core.trainers[name]
        if row.ending is TrainerEnd.CANCELLED:
            return events.TrainerCancelled(name)
        if row.ending is TrainerEnd.FAILS:
            return events.WorkerExited(name, next(iter(trainer.workers)), events.ExitCause.RAISED, "it has a bug")
        return events.TrainerFinished(name, trainer.generation, 0, int(row.samples))

    def _progress(self) -> list[Event]:
        """How far trainers have got, if problems include it; those between decisions do not."""
        if not (self.core.config.follows_work and self.core.decides_now()):
            return []
        groups = {trainer: self.core.trainers[trainer].group for trainer in self._running}
        return [
            Progress(trainer, group.generation, 0, 0, max(0, int(self._running[trainer].done)))
            for trainer, group in groups.items()
            if group is not None
        ]

    def _submitted(self) -> list[Event]:
        submitted: list[Event] = []
        while self._submissions and self._submissions[0].submit_s <= self.now_s:
            submitted.append(events.TrainerSubmitted(self.config.knowledge.spec(self._submissions.popleft())))
        return submitted

    def _lost(self, change: Change) -> dict[TrainerId, list[NodeId]]:
        """The nodes that each trainer loses."""
        lost = dict[TrainerId, list[NodeId]]()
        for node in change.left:
            if (owner := self.core.pool.owner.get(node)) is not None:
                lost.setdefault(owner, []).append(node)
        return lost

    def _by_type(self, nodes: Collection[NodeId]) -> Counts:
        """How many of ``nodes`` are of each type."""
        if len(self._types) == 1:
            return (len(nodes),)
        counts = [0] * len(self._types)
        for node in nodes:
            counts[self._type.get(node, 0)] += 1
        return tuple(counts)

    # --- commands -------------------------------------------------------------------------------------------------

    def _settle(self, given: Sequence[Event]) -> None:
        """Hand ``given`` events to the core and carry out its commands, until it has no more at this time.

        A plan is made last, so that a problem which another event of the same time changes is not solved.
        """
        waiting = deque(given)
        while event := waiting.popleft() if waiting else self._plan():
            for command in self.core.handle(self.now_s, event):
                answer = self._answer(command)
                if answer is not None:
                    waiting.append(answer)

    def _plan(self) -> Event | None:
        """The event of the plan that is due; None: none is."""
        if self._solve is None or self._plan_due_s > self.now_s:
            return None
        solve, self._solve, self._plan_due_s = self._solve, None, math.inf
        plan = self._planner(solve.problem)
        self.records.solved(solve.problem, plan)
        return events.PlanReady(solve.plan_id, plan)

    def _answer(self, command: Command) -> Event | None:
        """Carry out a command, at once; returns the event that answers it."""
        match command:
            case commands.StartWorker(trainer, node):
                return events.WorkerReady(trainer, node)
            case commands.StopWorker(trainer, node):
                return events.WorkerExited(trainer, node, events.ExitCause.STOPPED)
            case commands.FormGroup(trainer, generation):
                return events.GroupFormed(trainer, generation, 0)
            case commands.PauseGroup(trainer, generation):
                return events.GroupPaused(trainer, generation, 0)
            case commands.ExamineGroup(trainer, generation):
                return events.GroupExamined(trainer, generation, ())
            case commands.WriteCheckpoint(trainer, node):
                return events.CheckpointWritten(trainer, node, 0)
            case commands.CheckScript(trainer, node):
                return events.ScriptChecked(trainer, node, ProofState.PASSED, "as assumed in replays")
            case Solve():
                self._solve, self._plan_due_s = command, self.now_s + self.config.solver_latency_s
                return None
            case commands.DrainPool():
                self.records.budget_ended_s = self.now_s
                return events.DrainRequested(command.reason)
            case commands.WarnOfBudget(None):
                self.records.budget_warned_s = self.now_s
                return None
            case commands.ReleaseNode(node):
                return events.PoolChanged(lost=(node,), cause="released")
            case commands.AskTrial(study, number, spec):
                return TrialAsked(study, number, spec, ())
            case commands.TellTrial(study, number):
                return TrialTold(study, number)
            case (
                commands.DissolveGroup()
                | commands.SetCheckpointInterval()
                | commands.SetNodeAside()
                | commands.MarkNodeSlow()
                | commands.HoldTrainer()
                | commands.WarnOfBudget()
                | commands.CloseTrainer()
            ):
                return None
            case _:
                assert_never(command)

    # --- accounts -------------------------------------------------------------------------------------------------

    def _account(self, change: Change, lost: Mapping[TrainerId, Sequence[NodeId]], gained: float) -> None:
        """Charge the cost of each trainer's net change of nodes, and record the moment."""
        self._open_accounts()
        preemption = rescale = 0.0
        pins: dict[TrainerId, int] = {}
        profiled = 0
        for trainer_id, account in self._running.items():
            group = self.core.trainers[trainer_id].group
            held = self._by_type(group.members if group is not None else ())
            if self.config.knowledge.know == MEASURED or account.submission.equal_shares:
                self._reports.expect(self.now_s, self.core.trainers[trainer_id])
                if (pin := self.core.trainers[trainer_id].profile.pin) is not None:
                    pins[trainer_id] = pin
                    profiled += sum(held)
            gone = self._by_type(lost.get(trainer_id, ()))
            cost = account.rescale(self.config.accounting, gone, held, self.config.scale_up_delay_s)
            weight = self.records.weight(account.submission)
            preemption += cost.preemption * weight
            rescale += cost.rescale * weight
        self.records.add(
            Moment(
                time_s=self.now_s,
                pool=len(self.core.pool),
                pool_types=self._by_type(self.core.pool.numbers),
                used=sum(account.nodes for account in self._running.values()),
                joined=len(change.joined),
                left=len(change.left),
                gained=gained,
                preemption=preemption,
                rescale=rescale,
                spread=self._spread(),
                profiled=profiled,
                profiling=rescale if pins != self._pins else 0.0,
            ),
            list(self._running.values()),
            self.core.idle(),
        )
        self._pins = pins

    def _spread(self) -> int:
        gpus = self.core.config.packing
        if not isinstance(gpus, GpuNodes):
            return 0
        return sum(gpus.spread(self.core.trainers[name].target) for name in self._running)

    def _open_accounts(self) -> None:
        for trainer in self.core.admitted():
            if trainer.id not in self._running and not self.core.undecided(trainer):
                row = self._by_id[trainer.id]
                account = Account(row, self.now_s, row.speeds_on(self._types))
                self._running[trainer.id] = self.accounts[trainer.id] = account

    def _finish_at(self, end_s: float) -> None:
        gained = self._advance(end_s)
        self.now_s = end_s
        self._account(Change(end_s), {}, gained)
