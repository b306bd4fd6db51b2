"""Huawei's allocators in replays (§5): decisions at a cadence, sizes that are powers of two, on a static pool (compared
with a loop over seconds, like the paper's simulation) and on a changing one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from pilot import planners
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.problem import Candidate, Plan, Problem
from pilot.core.trainer.spec import TrainerSpec
from pilot.research.sim.accounting import done_when, times_of
from pilot.research.sim.driver import SimConfig, Simulation
from pilot.research.traces.changes import Change, still_pool
from pilot.research.traces.workload import TrainerEnd, WorkloadRow
from tests.invariants import violations

SIZES = (1, 2, 4, 8)
CURVE = Curve.of([(n, n * 0.8**m) for m, n in enumerate(SIZES)])
NODES = 10
EVERY_S = 300


def job(number: int, submit_s: float, samples: float, ending: TrainerEnd = TrainerEnd.FINISHES) -> WorkloadRow:
    spec = TrainerSpec(
        TrainerId(f"j{number:02}"),
        curve=CURVE,
        fixed_curve=True,
        sizes=SIZES,
        rescale_up_s=0.0,
        rescale_down_s=0.0,
        samples=samples,
    )
    return WorkloadRow(spec, submit_s, samples, 0, ending)


def jobs(seed: int) -> list[WorkloadRow]:
    """At whole seconds; sometimes more of them than nodes."""
    rng = random.Random(seed)
    endings = [*[TrainerEnd.FINISHES] * 20, TrainerEnd.CANCELLED, TrainerEnd.FAILS, TrainerEnd.HANGS]
    submits = sorted(rng.randrange(4000) for _ in endings)
    return [
        job(i, float(s), float(rng.randrange(60, 5000)), e)
        for i, (s, e) in enumerate(zip(submits, endings, strict=True))
    ]


def simulate(
    rows: list[WorkloadRow],
    planner: str | Callable[[Problem], Plan],
    until_s: float,
    delay_s: float = 0.0,
    changes: Sequence[Change] = (still_pool(NODES),),
) -> Simulation:
    core = Coordinator(CoordinatorConfig(max_parallel_trainers=100, decide_every_s=EVERY_S, timed=True))
    config = SimConfig(until_s, scale_up_delay_s=delay_s)
    made = planners.make(planner) if isinstance(planner, str) else planner
    simulation = Simulation(core, made, changes, rows, config)
    assert simulation.run(lambda: False, lambda _: None)
    assert violations(simulation.core) == []
    return simulation


@dataclass(slots=True)
class Job:
    """A job in the loop over seconds: on ``nodes`` nodes, of which ``working`` take part until ``since_s + delay``."""

    row: WorkloadRow
    done: float = 0.0
    nodes: int = 0
    working: int = 0
    since_s: int = 0
    trained_s: int = 0
    ended_s: int | None = None

    def second(self, now_s: int, delay_s: float) -> None:
        if now_s > self.since_s + delay_s:
            self.working = self.nodes
        self.done += CURVE.at(self.working)
        self.trained_s += self.nodes > 0
        if self.done >= self.row.samples - 1e-6 and self.row.ending is not TrainerEnd.HANGS:
            self.ended_s, self.nodes = now_s, 0
        self.done = min(self.done, self.row.samples)

    def takes(self, now_s: int, nodes: int) -> None:
        if nodes != self.nodes:
            self.nodes, self.working, self.since_s = nodes, min(self.working, nodes), now_s

    def candidate(self) -> Candidate:
        spec, left_s = self.row.spec, max(1.0, self.row.samples - int(self.done))
        held, trained_s = self.nodes, float(self.trained_s)
        return Candidate(spec.trainer, held, 1, SIZES[-1], CURVE, 0.0, 0.0, SIZES, trained_s=trained_s, left_s=left_s)


def second_by_second(rows: list[WorkloadRow], name: str, until_s: int, delay_s: float = 0.0) -> dict[str, int | None]:
    planner, everyone = planners.make(name), [Job(row) for row in rows]
    for now_s in range(until_s):
        here = [j for j in everyone if j.row.submit_s <= now_s and j.ended_s is None]
        for one in here:
            if one.row.submit_s < now_s:
                one.second(now_s, delay_s)
        here = [j for j in here if j.ended_s is None]
        decides = now_s % EVERY_S == 0
        if here and (decides or any(not j.nodes for j in here)):
            candidates = tuple(j.candidate() for j in here)
            counts = planner(Problem(NODES, 120.0, candidates, float(EVERY_S), between=not decides)).as_dict()
            for one in here:
                one.takes(now_s, counts[one.row.spec.trainer])
    return {str(j.row.spec.trainer): j.ended_s for j in everyone}


@pytest.mark.parametrize(("name", "delay_s"), [("greedy", 0.0), ("dp", 0.0), ("greedy", 15.0)])
def test_events_and_a_loop_over_seconds_give_the_same(name: str, delay_s: float) -> None:
    """The loop notices an end up to a second late, and hands its nodes on then."""
    rows = jobs(seed=5)
    by_events = simulate(rows, name, 20_000.0, delay_s).accounts
    by_seconds = second_by_second(rows, name, 20_000, delay_s)
    for trainer, ended_s in by_seconds.items():
        assert by_events[TrainerId(trainer)].ended_s == pytest.approx(ended_s, abs=8.0), trainer
    assert sum(ended_s is None for ended_s in by_seconds.values()) == 1


def test_without_an_end_a_replay_goes_on_until_all_have_ended() -> None:
    rows = [job(1, 0.0, 100.0), job(2, 50.0, 1000.0), job(3, 9000.0, 10.0)]
    simulation = simulate(rows, "greedy", float("inf"))
    assert [times.trainer for times in times_of(simulation.accounts.values())] == ["j01", "j02", "j03"]
    assert simulation.now_s == pytest.approx(9000.0 + 10.0 / CURVE.at(8))


def test_who_has_no_nodes_waits() -> None:
    rows = [job(1, 0.0, 100 * CURVE.at(8)), job(2, 0.0, 290 * CURVE.at(2)), job(3, 10.0, 50 * CURVE.at(8))]
    times = times_of(simulate(rows, "greedy", float("inf")).accounts.values())
    assert [(one.waiting_s, one.training_s, one.total_s) for one in times] == [
        pytest.approx(seconds) for seconds in [(0, 100, 100), (0, 290, 290), (90, 50, 140)]
    ]


def test_how_many_were_done_when_another_had_done_so_many() -> None:
    rows = jobs(seed=5)
    greedy, horizon = (times_of(simulate(rows, name, 20_000.0).accounts.values()) for name in ("greedy", "dp"))
    assert done_when(greedy, 10, greedy) == 10
    tenth_s = sorted(one.ended_s for one in greedy if one.ending is TrainerEnd.FINISHES)[9]
    expected = sum(one.ended_s <= tenth_s for one in horizon if one.ending is TrainerEnd.FINISHES)
    assert done_when(greedy, 10, horizon) == expected > 0
    assert done_when(greedy, 21, horizon) is None


def changes(rng: random.Random) -> list[Change]:
    """Some nodes join and some leave, now and then."""
    here = [NodeId(f"n{i}") for i in range(9)]
    made, now_s, number = [Change(0.0, joined=tuple(here))], 0.0, 9
    while (now_s := now_s + rng.expovariate(1 / 150)) < 4000.0:
        left = rng.sample(here, rng.randrange(min(3, len(here)) + 1))
        joined = [NodeId(f"n{number + i}") for i in range(rng.randrange(4))]
        number += len(joined)
        here = [n for n in here if n not in left] + joined
        if left or joined:
            made.append(Change(now_s, joined=tuple(joined), left=tuple(left)))
    return made


@pytest.mark.parametrize("name", ["rolling-horizon", "greedy", "dp"])
def test_through_losses_and_arrivals_every_size_is_a_power_of_two(name: str) -> None:
    rng = random.Random(3)
    rows = sorted((job(i, rng.uniform(0, 3000), rng.uniform(60, 6000)) for i in range(14)), key=lambda j: j.submit_s)
    decided: list[bool] = []
    planner = planners.make(name)

    def watched(problem: Problem) -> Plan:
        decided.append(not problem.between)
        return planner(problem)

    simulation = simulate(rows, watched, 4000.0, changes=changes(rng))
    sizes = {nodes for account in simulation.accounts.values() for _, nodes in account.changes}
    assert sizes <= {0, *SIZES} and len(sizes) > 3
    assert 5 < sum(decided) <= 4000.0 / EVERY_S and not all(decided)


def test_waiting_trainers_get_idle_nodes_at_once_and_training_ones_at_the_decision() -> None:
    """As in the paper's Fig 8: nodes freed by one go to the next without a decision."""
    rows = [job(1, 0.0, CURVE.at(8) * 129), job(2, 62.0, 9000.0)]
    simulation = simulate(rows, "greedy", 4000.0, changes=[still_pool(8)])
    first, second = (simulation.accounts[TrainerId(name)] for name in ("j01", "j02"))
    assert first.ended_s == pytest.approx(129.0)
    assert second.changes == [(first.ended_s, 8)]
