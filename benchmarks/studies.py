"""Studies in the core, on a virtual clock: the gain from weights, and the cost of a thousand trials.

``python -m benchmarks.studies weights`` compares the weight of docs/elastic/studies.md with equal weights: the time
until the first trial is complete, until the eventual best trial is, and until the study is over.
``python -m benchmarks.studies thousand`` measures the longest decision and the memory of a study of 1,000 trials: what
the core and the monitor of a live pool hold at its end.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import time
import tracemalloc
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, field
from statistics import median
from unittest.mock import patch

from benchmarks.completion import completion
from pilot import planners
from pilot.core.commands import (
    AskTrial,
    Command,
    PauseGroup,
    Solve,
    TellTrial,
    WriteCheckpoint,
)
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.events import (
    CheckpointWritten,
    Event,
    GroupPaused,
    PlanReady,
    PoolChanged,
    Progress,
)
from pilot.core.ids import NodeId, StudyId, TrainerId, TrainerUid
from pilot.core.study.events import StudySubmitted, TrialAsked, TrialTold
from pilot.core.study.studies import Studies
from pilot.core.study.study import Study, StudySpec
from pilot.core.trainer.spec import TrainerSpec
from pilot.history.monitor import Monitor

REPORT_S = 60.0
"""Seconds per report on one node."""

PAUSE_S = 10.0
"""Seconds that a start or a change of nodes costs a trial."""


@dataclass
class Work:
    """A trial's progress, in reports; it stands still until ``since_s`` if that is later."""

    done: float = 0.0
    since_s: float = 0.0
    rate: float = 0.0
    told: int = 0

    def advance(self, now_s: float) -> None:
        """Advance to ``now_s``."""
        if now_s > self.since_s:
            self.done += (now_s - self.since_s) * self.rate
            self.since_s = now_s

    def due_s(self) -> float:
        """When its next report is due."""
        return self.since_s + (self.told + 1 - self.done) / self.rate if self.rate else math.inf


@dataclass
class Replay:
    """One study on ``nodes`` nodes. A trial's value at a rung is its quality plus noise that shrinks with the rung."""

    spec: StudySpec
    nodes: int
    curve: Curve
    noise: float
    rng: random.Random
    now_s: float = 0.0
    works: dict[TrainerId, Work] = field(default_factory=dict)
    complete_s: dict[TrainerId, float] = field(default_factory=dict)
    longest_s: float = 0.0

    def run(self) -> None:
        """Run to its end."""
        self.core = Coordinator(CoordinatorConfig(max_parallel_trainers=self.nodes))
        self.monitor = Monitor()
        self.planner = planners.make("dp")
        self.qualities: dict[TrainerId, float] = {}
        self._settle([PoolChanged(joined=tuple(NodeId(f"n{n}") for n in range(self.nodes)))])
        self._settle([StudySubmitted(self.spec)])
        study = self.core.studies[self.spec.study]
        while not self.ends(study):
            due = {trainer: work.due_s() for trainer, work in self.works.items()}
            self.now_s = max(self.now_s, min([*due.values(), self.core.due_s()]))
            assert self.now_s < math.inf, "the study stands still"
            made = [trainer for trainer, at_s in due.items() if at_s <= self.now_s + 1e-9]
            self._settle([*self.core.due(self.now_s), *map(self._report, made)])

    def ends(self, study: Study) -> bool:
        """Whether there is nothing more to measure."""
        return study.over

    def value(self, trainer: TrainerId, told: int) -> float:
        """A trial's ``told``-th report."""
        quality = self.qualities.setdefault(trainer, self.rng.random())
        return quality + self.rng.gauss(0.0, self.noise / math.sqrt(told))

    def rate(self, trainer: TrainerId, nodes: int) -> float:
        """Reports per second."""
        del trainer  # all are equal here
        return self.curve.at(nodes) / REPORT_S

    def begun(self, spec: TrainerSpec) -> TrainerSpec:
        """A trial as submitted once its parameters are known."""
        return spec

    def _report(self, trainer: TrainerId) -> Event:
        work, group = self.works[trainer], self.core.trainers[trainer].group
        assert group is not None
        work.advance(self.now_s)
        work.told += 1
        work.done = float(work.told)
        value = self.value(trainer, work.told)
        if work.told == self.spec.rungs[-1]:
            self.complete_s[trainer] = self.now_s
        return Progress(trainer, group.generation, work.told, 0, work.told, reports=((work.told, value),))

    def _settle(self, events: list[Event]) -> None:
        waiting = deque(events)
        solve: Solve | None = None
        while waiting or solve is not None:
            if waiting:
                event = waiting.popleft()
            else:
                assert solve is not None
                event, solve = PlanReady(solve.plan_id, self.planner(solve.problem)), None
            began_s = time.perf_counter()
            commands = self.core.handle(self.now_s, event)
            self.longest_s = max(self.longest_s, time.perf_counter() - began_s)
            self.monitor.note(self.now_s, event, commands)
            for command in commands:
                solve = command if isinstance(command, Solve) else solve
                if (answer := self._answer(command)) is not None:
                    waiting.append(answer)
        for trainer, known in self.core.trainers.items():
            nodes = len(known.group.members) if known.group is not None else 0
            work = self.works.setdefault(trainer, Work(since_s=self.now_s))
            rate = self.rate(trainer, nodes) if nodes else 0.0
            if rate != work.rate:
                work.advance(self.now_s)
                work.rate, work.since_s = rate, self.now_s + (PAUSE_S if rate else 0.0)

    def _answer(self, command: Command) -> Event | None:
        match command:
            case Solve():
                return None
            case PauseGroup(trainer, generation):
                return GroupPaused(trainer, generation, 0)
            case WriteCheckpoint(trainer, node):
                return CheckpointWritten(trainer, node, 0)
            case AskTrial(study, number, spec):
                return TrialAsked(study, number, self.begun(spec), (("lr", self.rng.random()),))
            case TellTrial(study, number):
                return TrialTold(study, number)
            case _:
                return completion(command, self.planner)


def replay(seed: int, trials: int, nodes: int, power: float, noise: float, deadline_s: float | None = None) -> Replay:
    """One study; n nodes run a trial n ** ``power`` times as fast as one."""
    curve = Curve.of((n, n**power) for n in (1, 2, 4, 8, 16, 32, 64))
    template = TrainerSpec(
        TrainerId("s"),
        uid=TrainerUid("0" * 32),
        curve=curve,
        fixed_curve=True,
        rescale_up_s=PAUSE_S,
        rescale_down_s=PAUSE_S,
    )
    spec = StudySpec(StudyId("s"), "accuracy", True, (1, 3, 9), trials, template, deadline_s)
    made = Replay(spec, nodes, curve, noise, random.Random(seed))
    made.run()
    return made


def measured(trials: int, nodes: int, power: float, equal: bool, seeds: int) -> tuple[float, float, float]:
    """Medians over ``seeds``, in minutes: until the first trial is complete, until the best one is, until the end."""
    rows = []
    for seed in range(seeds):
        with patch.object(Studies, "weights", lambda *_: {}) if equal else nullcontext():
            made = replay(seed, trials, nodes, power, noise=0.1)
        done = made.complete_s
        best = max(done, key=lambda trainer: made.qualities[trainer])
        rows.append((min(done.values()) / 60, done[best] / 60, made.now_s / 60))
    first, best_, end = (median(column) for column in zip(*rows, strict=True))
    return first, best_, end


def weights(seeds: int) -> None:
    """Print the table of docs/elastic/studies.md."""
    print("| trials | nodes | n nodes do | weight | first complete | best complete | over |")
    print("|---|---|---|---|---|---|---|")
    for trials, nodes in ((64, 16), (64, 64), (32, 8)):
        for power in (0.7, 0.9):
            for equal in (True, False):
                first, best, end = measured(trials, nodes, power, equal, seeds)
                name = "equal" if equal else "by P / E"
                print(f"| {trials} | {nodes} | n^{power} | {name} | {first:.1f} | {best:.1f} | {end:.1f} |")


def thousand(seeds: int) -> None:
    """Print the longest decision and the memory per trial for 200 and 1,000 trials on 64 nodes (medians)."""
    held = {}
    for trials in (200, 1000):
        plain = [replay(seed, trials, 64, 0.9, 0.1) for seed in range(seeds)]
        held[trials] = median(held_by_core(seed, trials) for seed in range(seeds))
        longest_ms, complete = median(made.longest_s for made in plain) * 1e3, median(len(m.complete_s) for m in plain)
        print(f"{trials} trials: longest decision {longest_ms:.1f} ms, {complete:g} complete, {held[trials]:.0f} kB")
    print(f"memory: {(held[1000] - held[200]) / 800:.1f} kB a trial")


def held_by_core(seed: int, trials: int) -> float:
    """The memory freed with core and monitor at the end of a study, in kB. (Allocations during the run say less:
    planners' caches fill and empty.)"""
    tracemalloc.start()
    made = replay(seed, trials, 64, 0.9, 0.1)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    del made.core, made.monitor
    gc.collect()
    freed = before - tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return freed / 1000


def main() -> None:
    """Run the chosen experiment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("weights", "thousand"))
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    if options.what == "weights":
        weights(options.seeds)
    else:
        thousand(options.seeds)


if __name__ == "__main__":
    main()
