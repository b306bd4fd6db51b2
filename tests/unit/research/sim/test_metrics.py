"""U and its components."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.idle import Bound
from pilot.core.pool.node_type import NodeType
from pilot.core.trainer.spec import TrainerSpec
from pilot.planners import dp
from pilot.research.sim.accounting import Accounting
from pilot.research.sim.driver import SimConfig, Simulation
from pilot.research.sim.metrics import NO_TRAINER, NODE_SECONDS, IntegralMeter, Summary, returns_on_rescale, summarize
from pilot.research.sim.records import Kind, Records
from pilot.research.traces.changes import Change
from pilot.research.traces.workload import WorkloadRow

SHUFFLENET = Curve.of(
    [(1, 2831.0), (2, 5259.0), (4, 9988.0), (8, 20379.2), (16, 38895.3), (32, 74125.1), (64, 145081.5)]
)
NODES = tuple(NodeId(f"n{k}") for k in range(85))


def replay(
    changes: list[Change], submissions: list[WorkloadRow], until_s: float, most: int | None = 10
) -> tuple[Summary, Records]:
    core = Coordinator(CoordinatorConfig(max_parallel_trainers=most))
    simulation = Simulation(core, dp.plan, changes, submissions, SimConfig(until_s))
    complete = simulation.run(lambda: False, lambda _: None)
    records = simulation.records
    return summarize(records, simulation.accounts, Accounting.PAPER, len(submissions), complete), records


def trainers(count: int, curves: list[Curve], samples: float = 1e12) -> list[WorkloadRow]:
    made = []
    for k in range(count):
        index = k % len(curves)
        spec = TrainerSpec(TrainerId(f"t{k}"), curve=curves[index], fixed_curve=True)
        made.append(WorkloadRow(spec, 0.0, samples, index))
    return made


def test_static_nodes_give_a_u_of_one() -> None:
    summary, _ = replay([Change(0.0, joined=NODES)], trainers(10, [SHUFFLENET]), 3600.0)
    assert summary.efficiency == pytest.approx(1.0, abs=1e-9)
    assert (summary.eq_nodes, summary.node_hours, summary.used) == (85.0, 85.0, 1.0)
    assert summary.unit == "samples"
    assert summary.work == pytest.approx(summary.samples)


def test_the_static_rate_of_the_summit_week() -> None:
    """168 h times the best rate of ten ShuffleNets on 85.09 nodes is 1.3038e11 samples."""
    records = Records()
    records.curves[Kind(0, 1, 64)] = SHUFFLENET
    meter = IntegralMeter(records)
    rate = meter.best_rate(((Kind(0, 1, 64), 10),), (85.0942,))
    assert rate * meter.scale * 168 * 3600 == pytest.approx(1.3038e11, rel=1e-4)


def test_nodes_that_cannot_be_used_lower_u() -> None:
    summary, _ = replay([Change(0.0, joined=NODES)], trainers(1, [SHUFFLENET]), 3600.0)
    assert summary.used == pytest.approx(64 / 85)
    assert summary.efficiency == pytest.approx(1.0)


def test_a_change_lowers_u_by_its_cost() -> None:
    changes = [Change(0.0, joined=NODES), Change(1800.0, left=NODES[:5])]
    summary, _ = replay(changes, trainers(10, [SHUFFLENET]), 3600.0)
    assert summary.efficiency is not None and summary.efficiency < 1.0
    lost = (summary.preemption_per_event + summary.rescale_per_event) * summary.pool_changes
    assert lost > 0
    assert summary.work + lost == pytest.approx(summary.static_work, rel=1e-3)


def test_work_of_several_kinds_is_in_node_seconds() -> None:
    summary, _ = replay(
        [Change(0.0, joined=NODES[:2])], trainers(2, [Curve.proportional(5), Curve.proportional(7)]), 100
    )
    assert summary.unit == NODE_SECONDS
    assert summary.work == pytest.approx(200.0)
    assert summary.samples in (pytest.approx(100 * (5 + 7)), pytest.approx(200 * 5), pytest.approx(200 * 7))


def test_run_times_count_from_admission_and_by_curve() -> None:
    submissions = trainers(2, [Curve.proportional(5), Curve.proportional(7)], samples=3600.0 * 7)
    summary, _ = replay([Change(0.0, joined=NODES[:2])], submissions, 7200.0)
    assert [(row.curve, row.completed) for row in summary.run_times] == [(0, 1), (1, 1)]
    assert summary.completed == 2


def test_six_hours_cover_the_replay() -> None:
    summary, _ = replay([Change(0.0, joined=NODES)], trainers(10, [SHUFFLENET]), 8 * 3600.0)
    assert [b.start_h for b in summary.six_hours] == [0.0, 6.0]
    assert [b.efficiency for b in summary.six_hours] == [pytest.approx(1.0, abs=1e-9)] * 2


def test_the_return_is_the_work_until_the_next_event_by_its_cost() -> None:
    columns = {"rescale": np.array([0.0, 2.0, 4.0, 9.0]), "gained": np.array([0.0, 5.0, 10.0, 2.0])}
    assert returns_on_rescale(columns).tolist() == [5.0, 0.5]


def test_a_replay_without_trainers_has_no_u() -> None:
    late = [WorkloadRow(submission.spec, 1e9, 1.0, 0) for submission in trainers(1, [SHUFFLENET])]
    summary, _ = replay([Change(0.0, joined=NODES)], late, 3600.0)
    assert summary.efficiency is None
    assert summary.used == 0.0


def test_hours_after_the_last_trainer_do_not_count_as_work() -> None:
    """The pool grows when there is no one left to train: A_s then has nodes that no trainer ever had."""
    changes = [Change(0.0, joined=NODES[:20]), Change(3600.0, joined=NODES[20:])]
    summary, _ = replay(changes, trainers(10, [Curve.proportional(5)], samples=18000.0), 7200.0)
    assert summary.completed == 10
    assert summary.efficiency is not None
    assert summary.efficiency < 0.5
    assert summary.working.efficiency == pytest.approx(1.0)
    assert (summary.working.hours, summary.working.eq_nodes) == (pytest.approx(0.5), 20.0)


def test_with_trainers_at_all_times_the_working_time_is_the_whole() -> None:
    """Hours without nodes count: there was work to do."""
    changes = [Change(0.0, joined=NODES[:20]), Change(1800.0, left=NODES[:20])]
    summary, _ = replay(changes, trainers(10, [SHUFFLENET]), 3600.0)
    assert summary.working.hours == 1.0
    assert summary.working.efficiency == summary.efficiency
    assert summary.working.shared_efficiency is None


def bursts(count: int, nodes: int, length_s: float = 900.0) -> list[Change]:
    """``nodes`` nodes at the begin of each hour."""
    ends = [(3600.0 * k, 3600.0 * k + length_s) for k in range(count)]
    changes = [(Change(start_s, joined=NODES[:nodes]), Change(end_s, left=NODES[:nodes])) for start_s, end_s in ends]
    return [change for pair in changes for change in pair]


def wide(least: int) -> list[WorkloadRow]:
    spec = TrainerSpec(TrainerId("t"), min_nodes=least, curve=SHUFFLENET, fixed_curve=True)
    return [WorkloadRow(spec, 0.0, 1e12, 0)]


def test_a_minimum_above_eq_nodes_has_a_reference_that_can_run_it() -> None:
    summary, _ = replay(bursts(4, 16), wide(least=8), 4 * 3600.0)
    assert summary.eq_nodes == 4.0
    assert summary.efficiency is None, "4 dedicated nodes cannot run it at all"
    assert summary.working.min_nodes == 8
    # A quarter of the time on 16 nodes would be worth half of the time on 8, if the curve were straight.
    best = max(SHUFFLENET.at(n) / n for n in range(8, 17)) * 4 * 4 * 3600.0
    assert summary.working.shared_efficiency == pytest.approx(summary.work / best)
    assert 0.9 < summary.work / best < 1.0


def test_u_above_one_has_a_reference_that_it_does_not_exceed() -> None:
    """Between 7 and 8 dedicated nodes the reference is worth next to nothing."""
    summary, _ = replay(bursts(4, 29), wide(least=8), 4 * 3600.0)
    assert summary.efficiency is not None
    assert summary.efficiency > 2
    assert summary.working.shared_efficiency is not None
    assert summary.working.shared_efficiency < 1


def narrow(count: int, samples: float = 1e12) -> list[WorkloadRow]:
    """Trainers on at most 4 nodes, at a rate of 5 on each."""
    made = trainers(count, [Curve.proportional(5)], samples)
    return [replace(row, spec=replace(row.spec, max_nodes=4)) for row in made]


def test_idle_node_time_is_told_by_the_bound_that_causes_it() -> None:
    """On 10 nodes one trainer at a time leaves 6, two leave 2, three none."""
    changes = [Change(0.0, joined=NODES[:10])]
    assert replay(changes, narrow(2), 3600.0, most=1)[0].idle == {Bound.PARALLEL.value: pytest.approx(0.6)}
    assert replay(changes, narrow(2), 3600.0)[0].idle == {Bound.NODES.value: pytest.approx(0.2)}
    assert replay(changes, narrow(3), 3600.0)[0].idle == {}


def test_node_time_without_trainers_is_idle_for_lack_of_them() -> None:
    summary, _ = replay([Change(0.0, joined=NODES[:4])], narrow(1, samples=4 * 5 * 900.0), 3600.0)
    assert summary.idle == {NO_TRAINER: pytest.approx(0.75)}
    assert summary.used == pytest.approx(0.25)


def mixed_meter(*, equal_shares: bool = False) -> tuple[IntegralMeter, Kind]:
    records, made = Records(), Kind(0, 1, 64, speeds=(1.0, 0.5), equal_shares=equal_shares)
    records.curves[made] = Curve.of([(1, 10.0), (64, 640.0)])
    return IntegralMeter(records), made


def test_the_static_rate_of_nodes_of_two_types() -> None:
    meter, kind = mixed_meter()
    assert meter.best_rate(((kind, 1),), (2.0, 4.0)) == pytest.approx(4.0)
    assert meter.best_rate(((kind, 2),), (2.5, 4.0)) == pytest.approx(4.5)
    assert meter.best_rate(((kind, 2),), (2.25, 4.5)) == pytest.approx(4.5)


def test_the_static_rate_with_equal_shares_is_that_of_one_type_for_each() -> None:
    meter, kind = mixed_meter(equal_shares=True)
    assert meter.best_rate(((kind, 1),), (2.0, 4.0)) == pytest.approx(2.0)
    assert meter.best_rate(((kind, 2),), (2.0, 4.0)) == pytest.approx(4.0)


def test_the_static_rate_on_one_type_that_is_not_the_reference() -> None:
    records, kind = Records(), Kind(0, 1, 64, speeds=(0.5,))
    records.curves[kind] = Curve.of([(1, 10.0), (64, 640.0)])
    assert IntegralMeter(records).best_rate(((kind, 2),), (6.0,)) == pytest.approx(3.0)


def test_static_nodes_of_two_types_give_a_u_of_one() -> None:
    types = tuple((node, NodeType("fast" if k < 40 else "slow")) for k, node in enumerate(NODES))
    rows = [
        replace(row, spec=replace(row.spec, speeds=(("fast", 1.0), ("slow", 0.5))))
        for row in trainers(2, [Curve.of([(1, 10.0), (64, 640.0)])])
    ]
    summary, records = replay([Change(0.0, joined=NODES, types=types)], rows, 3600.0)
    assert records.moments[0].pool_types == (40, 45)
    assert summary.efficiency == pytest.approx(1.0, abs=1e-6)
    assert summary.working.shared_efficiency is None
