"""Huawei's allocators in replays: decisions at a cadence, sizes that are powers of two, a changing pool."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pilot import planners
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.problem import Plan, Problem
from pilot.core.trainer.spec import TrainerSpec
from pilot.research.sim.driver import SimConfig, Simulation
from pilot.research.traces.changes import Change
from pilot.research.traces.workload import WorkloadRow
from tests.invariants import violations

PUBLISHED = Curve.of([(2**m, 2**m * 0.8**m) for m in range(4)])
POWERS = (1, 2, 4, 8)
END_S = 4000.0
CONFIG = CoordinatorConfig(max_parallel_trainers=100, decide_every_s=300.0, timed=True)


def job(number: int, submit_s: float, samples: float) -> WorkloadRow:
    spec = TrainerSpec(
        TrainerId(f"t{number}"),
        curve=PUBLISHED,
        fixed_curve=True,
        sizes=POWERS,
        rescale_up_s=0.0,
        rescale_down_s=0.0,
        samples=samples,
    )
    return WorkloadRow(spec, submit_s, samples, 0)


def simulate(planner: Callable[[Problem], Plan], changes: list[Change], jobs: list[WorkloadRow]) -> Simulation:
    simulation = Simulation(Coordinator(CONFIG), planner, changes, jobs, SimConfig(END_S))
    assert simulation.run(lambda: False, lambda _: None)
    assert violations(simulation.core) == []
    return simulation


def changes(rng: random.Random) -> list[Change]:
    """Some nodes join and some leave, now and then."""
    here = [NodeId(f"n{i}") for i in range(9)]
    made, now_s, number = [Change(0.0, joined=tuple(here))], 0.0, 9
    while (now_s := now_s + rng.expovariate(1 / 150)) < END_S:
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
    jobs = sorted((job(i, rng.uniform(0, 3000), rng.uniform(60, 6000)) for i in range(14)), key=lambda j: j.submit_s)
    decided: list[bool] = []
    planner = planners.make(name)

    def watched(problem: Problem) -> Plan:
        decided.append(not problem.between)
        return planner(problem)

    simulation = simulate(watched, changes(rng), jobs)
    sizes = {nodes for account in simulation.accounts.values() for _, nodes in account.changes}
    assert sizes <= {0, *POWERS} and len(sizes) > 3
    assert 5 < sum(decided) <= END_S / 300.0 and not all(decided)


def test_waiting_trainers_get_idle_nodes_at_once_and_training_ones_at_the_decision() -> None:
    """As in the paper's Fig 8: nodes freed by one go to the next without a decision."""
    jobs = [job(1, 0.0, 8 * 0.512 * 129), job(2, 62.0, 9000.0)]
    simulation = simulate(planners.make("greedy"), [Change(0.0, joined=tuple(map(NodeId, "abcdefgh")))], jobs)
    first, second = (simulation.accounts[TrainerId(name)] for name in ("t1", "t2"))
    assert first.ended_s == pytest.approx(129.0)
    assert second.changes == [(first.ended_s, 8)]
