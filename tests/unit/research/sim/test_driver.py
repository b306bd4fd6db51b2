"""The core on a virtual clock, on traces small enough to follow by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.problem import Plan, Problem
from pilot.core.pool.node_type import NodeType
from pilot.core.trainer.spec import Profiling, TrainerSpec
from pilot.planners import dp, make
from pilot.research.sim.accounting import Accounting
from pilot.research.sim.driver import Completions, SimConfig, Simulation
from pilot.research.sim.knowledge import MEASURED, Knowledge
from pilot.research.traces.changes import Change
from pilot.research.traces.synthesis import PUBLISHED, draw
from pilot.research.traces.workload import WorkloadRow
from tests.invariants import violations

A, B, C = (NodeId(name) for name in "abc")


def submission(name: str, samples: float, submit_s: float = 0.0, **spec: object) -> WorkloadRow:
    """A trainer of 1 sample per second and node."""
    values = {"max_nodes": 8, "rescale_up_s": 10.0, "rescale_down_s": 5.0, **spec}
    made = TrainerSpec(TrainerId(name), curve=Curve.of([(1, 1), (8, 8)]), fixed_curve=True, **values)
    return WorkloadRow(made, submit_s, samples, 0)


def simulate(changes: Sequence[Change], submissions: Sequence[WorkloadRow], **config: object) -> Simulation:
    values = {"until_s": 1000.0, **config}
    parallel = values.pop("parallel", 10)
    budget = {"budget_node_hours": values.pop("budget", None), "charge_factor": 0.5}
    core = Coordinator(CoordinatorConfig(max_parallel_trainers=parallel, **budget))
    simulation = Simulation(core, dp.plan, changes, submissions, SimConfig(**values))
    assert simulation.run(lambda: False, lambda _: None)
    return simulation


def finished(simulation: Simulation) -> dict[str, float | None]:
    return {str(name): account.ended_s for name, account in simulation.accounts.items()}


def test_a_trainer_runs_from_its_first_node_until_its_samples_are_done() -> None:
    simulation = simulate([Change(100.0, joined=(A, B))], [submission("t", 200.0)])
    assert finished(simulation) == {"t": 200.0}
    assert simulation.core.trainers[TrainerId("t")].outcome == "finished"


def test_nodes_of_two_types_train_at_their_speeds() -> None:
    types = ((A, NodeType("fast")), (B, NodeType("slow")))
    row = submission("t", 150.0, speeds=(("fast", 1.0), ("slow", 0.5)))
    simulation = simulate([Change(0.0, joined=(A, B), types=types), Change(500.0, left=(A,))], [row])
    assert finished(simulation) == {"t": pytest.approx(100.0)}
    assert [moment.pool_types for moment in simulation.records.moments][:2] == [(1, 1), (1, 1)]


@pytest.mark.parametrize(("typed", "equal_shares", "rate"), [(True, False, 2.4), (True, True, 2.0), (False, True, 0.8)])
def test_plans_for_types_see_speeds_and_learn_that_shares_are_equal(
    typed: bool, equal_shares: bool, rate: float
) -> None:
    """Two nodes of speed 1 and two of 0.2: all of them together, or the fast ones alone, if plans can tell them."""
    nodes = A, B, C, NodeId("d")
    types = tuple(zip(nodes, map(NodeType, ("fast", "slow", "fast", "slow")), strict=True))
    changes = [Change(0.0, joined=nodes[:3], types=types[:3]), Change(100.0, joined=nodes[3:], types=types[3:])]
    row = replace(submission("t", 1e6, speeds=(("fast", 1.0), ("slow", 0.2))), equal_shares=equal_shares)
    core = Coordinator(CoordinatorConfig(max_parallel_trainers=1, typed=typed))
    simulation = Simulation(core, make("dp"), changes, [row], SimConfig(600.0))
    assert simulation.run(lambda: False, lambda _: None)
    assert simulation.accounts[TrainerId("t")].rate == pytest.approx(rate)


def test_the_core_learns_speeds_from_reports() -> None:
    types = ((A, NodeType("one")), (B, NodeType("other")))
    row = submission("t", 1e6, speeds=(("one", 1.0), ("other", 0.1)))
    core = Coordinator(CoordinatorConfig(typed=True))
    config = SimConfig(600.0, knowledge=Knowledge(MEASURED, profile=Profiling.NEVER))
    simulation = Simulation(core, make("dp"), [Change(0.0, joined=(A, B), types=types)], [row], config)
    assert simulation.run(lambda: False, lambda _: None)
    trainer = core.trainers[TrainerId("t")]
    assert trainer.spec.speeds == ()
    found = trainer.speeds.relative("other", "one")
    assert found is not None and found.value == pytest.approx(0.1)


def test_a_trainer_is_there_once_a_plan_lets_it_share_the_pool() -> None:
    """Until then its time counts as waiting, and A_s does without it."""
    core = Coordinator(CoordinatorConfig(arrivals_s=2.0))
    narrow = [submission(name, 100.0, max_nodes=1) for name in "tuvw"]
    simulation = Simulation(core, make("dp"), [Change(0.0, joined=(A, B))], narrow, SimConfig(150.0))
    assert simulation.run(lambda: False, lambda _: None)
    assert {str(name): account.admitted_s for name, account in simulation.accounts.items()} == {
        "t": 0.0,
        "u": 0.0,
        "v": 100.0,
        "w": 100.0,
    }


def test_problems_have_the_remaining_work_if_planners_need_it() -> None:
    """The remaining work in seconds on one node, and how long the trainer has trained."""
    seen: list[tuple[float, float | None]] = []

    def planner(problem: Problem) -> Plan:
        seen.extend((c.trained_s, c.left_s) for c in problem.candidates)
        return dp.plan(problem)

    row = submission("t", 500.0)
    row = replace(row, spec=replace(row.spec, samples=500.0))
    for timed in (True, False):
        changes = [Change(0.0, joined=(A,)), Change(100.0, joined=(B,)), Change(150.0, left=(A,))]
        core = Coordinator(CoordinatorConfig(timed=timed))
        Simulation(core, planner, changes, [row], SimConfig(200.0)).run(lambda: False, lambda _: None)
    # growing has cost ten samples, losing a node another five at twice the rate
    assert seen == [(0.0, 500.0), (100.0, 400.0), (150.0, 310.0), (0.0, None), (0.0, None), (0.0, None)]


def test_growing_costs_its_seconds_at_the_old_rate() -> None:
    changes = [Change(0.0, joined=(A,)), Change(100.0, joined=(B,))]
    simulation = simulate(changes, [submission("t", 290.0)])
    assert finished(simulation) == {"t": 100.0 + (290 - 100 + 10) / 2}


@pytest.mark.parametrize("accounting", list(Accounting))
def test_a_profile_measures_the_true_rates_and_a_replay_ends(accounting: Accounting) -> None:
    truth = Curve.of([(1, 100.0), (4, 200.0), (8, 220.0)])
    rows = [submission(name, 1e5, 100.0 * n) for n, name in enumerate("tuv")]
    rows = [replace(row, spec=replace(row.spec, curve=truth)) for row in rows]
    core = Coordinator(CoordinatorConfig(arrivals_s=2.0))
    nodes = tuple(NodeId(f"n{i}") for i in range(10))
    changes = [Change(0.0, joined=nodes), Change(150.0, left=nodes[:3]), Change(200.0, joined=nodes[:3])]
    config = SimConfig(1e4, accounting, knowledge=Knowledge(MEASURED))
    simulation = Simulation(core, make("dp"), changes, rows, config)
    assert simulation.run(lambda: False, lambda _: None)
    assert all(s is not None for s in finished(simulation).values())
    for trainer in core.trainers.values():
        assert trainer.profile.pin is None
        assert trainer.measured.rates == pytest.approx({n: truth.at(n) for n in trainer.measured.rates})
    measured = core.trainers[TrainerId("t")].measured.rates
    assert len(measured) >= 2 and max(measured) >= 4


def test_a_loss_costs_and_the_survivors_go_on() -> None:
    changes = [Change(0.0, joined=(A, B)), Change(100.0, left=(A,))]
    simulation = simulate(changes, [submission("t", 240.0)])
    assert finished(simulation) == {"t": 100.0 + (240 - 200 + 5 * 2)}


def test_when_all_nodes_go_the_trainer_waits_and_resumes() -> None:
    changes = [Change(0.0, joined=(A,)), Change(50.0, left=(A,)), Change(300.0, joined=(B,))]
    simulation = simulate(changes, [submission("t", 95.0)])
    assert finished(simulation) == {"t": 300.0 + 95 - 50 + 5}


def test_survivors_below_min_nodes_process_nothing() -> None:
    changes = [Change(0.0, joined=(A, B)), Change(50.0, left=(A,)), Change(300.0, joined=(C,))]
    simulation = simulate(changes, [submission("t", 190.0, min_nodes=2)])
    assert finished(simulation) == {"t": 300.0 + (190 - 100 + 5 * 2) / 2}


def test_a_finished_trainer_hands_its_nodes_on_at_once() -> None:
    simulation = simulate([Change(0.0, joined=(A,))], [submission("t1", 100.0), submission("t2", 50.0)], parallel=1)
    assert finished(simulation) == {"t1": 100.0, "t2": 150.0}


def test_at_node_events_completions_and_arrivals_wait_for_the_pool() -> None:
    changes = [Change(0.0, joined=(A,)), Change(400.0, joined=(B,)), Change(600.0, left=(B,))]
    submissions = [submission("t1", 100.0), submission("t2", 50.0, submit_s=10.0)]
    simulation = simulate(changes, submissions, parallel=1, completions=Completions.AT_NODE_EVENTS)
    assert finished(simulation) == {"t1": 400.0, "t2": 600.0}
    assert simulation.accounts[TrainerId("t1")].done == 100.0


def test_a_plan_that_is_late_leaves_nodes_idle_meanwhile() -> None:
    simulation = simulate([Change(0.0, joined=(A,))], [submission("t", 100.0)], solver_latency_s=7.0)
    assert finished(simulation) == {"t": 107.0}


def test_a_late_plan_for_an_older_pool_is_dropped() -> None:
    changes = [Change(0.0, joined=(A, B)), Change(5.0, left=(B,))]
    simulation = simulate(changes, [submission("t", 100.0)], solver_latency_s=7.0)
    assert finished(simulation) == {"t": 5.0 + 7.0 + 100.0}
    assert len(simulation.records.solves) == 1


def test_events_of_one_time_are_solved_once() -> None:
    changes = [Change(0.0, joined=(A, B, C)), Change(10.0, joined=(NodeId("d"),), left=(A, B))]
    submissions = [submission("t1", 1e6), submission("t2", 1e6), submission("t3", 1e6, submit_s=10.0)]
    assert [solve.nodes for solve in simulate(changes, submissions).records.solves] == [3, 2]


def test_physical_starts_pause() -> None:
    simulation = simulate([Change(0.0, joined=(A,))], [submission("t", 100.0)], accounting=Accounting.PHYSICAL)
    assert finished(simulation) == {"t": 110.0}


def test_a_stopped_replay_has_its_records() -> None:
    changes = [Change(float(t), joined=(NodeId(f"n{t}"),)) for t in range(10)]
    simulation = Simulation(Coordinator(), dp.plan, changes, [submission("t", 1e6)], SimConfig(until_s=1000.0))
    turns = iter([False] * 5 + [True])
    assert not simulation.run(lambda: next(turns), lambda _: None)
    assert [moment.pool for moment in simulation.records.moments] == [1, 2, 3, 4, 5]


def test_the_cores_invariants_hold_after_every_time_of_a_long_replay() -> None:
    changes = draw(PUBLISHED["summit"].on(64), 24 * 3600.0, seed=4)
    submissions = [submission(f"t{k}", 2e4, submit_s=100.0 * k, min_nodes=1 + k % 3) for k in range(40)]
    core = Coordinator(CoordinatorConfig(max_parallel_trainers=5))
    simulation = Simulation(core, dp.plan, changes, submissions, SimConfig(until_s=24 * 3600.0))
    broken: list[str] = []
    assert simulation.run(lambda: False, lambda _: broken.extend(violations(core)))
    assert broken == []
    done = [account for account in simulation.accounts.values() if account.ended_s is not None]
    assert len(done) > 10
    assert all(account.done == account.submission.samples for account in done)


@pytest.mark.parametrize("accounting", list(Accounting))
def test_work_equals_the_processed_samples(accounting: Accounting) -> None:
    changes = draw(PUBLISHED["summit"].on(64), 12 * 3600.0, seed=4)
    submissions = [submission(f"t{k}", 2e4) for k in range(20)]
    simulation = simulate(changes, submissions, until_s=12 * 3600.0, accounting=accounting)
    columns = simulation.records.columns()
    work = columns["gained"].sum()
    if accounting is Accounting.PAPER:
        work -= columns["preemption"].sum() + columns["rescale"].sum()
    assert math.isclose(work, sum(account.done for account in simulation.accounts.values()))


def test_the_planner_is_asked_with_the_cores_problem() -> None:
    asked: list[Problem] = []

    def planner(problem: Problem) -> Plan:
        asked.append(problem)
        return dp.plan(problem)

    core = Coordinator(CoordinatorConfig(t_fwd_s=33.0))
    simulation = Simulation(core, planner, [Change(0.0, joined=(A,))], [submission("t", 9.0)], SimConfig(until_s=5.0))
    simulation.run(lambda: False, lambda _: None)
    assert [(p.nodes, p.t_fwd_s, len(p.candidates)) for p in asked] == [(1, 33.0, 1)]


def test_a_pool_s_budget_ends_it_to_the_second_as_it_would_live() -> None:
    changes = [Change(0.0, joined=(A,)), Change(100.0, joined=(B,))]
    simulation = simulate(
        changes, [submission("t", 1e6, rescale_up_s=0.0, rescale_down_s=0.0)], budget=300 / 3600 * 0.5
    )
    assert simulation.core.draining
    assert simulation.core.usage.used_s == pytest.approx(300)
    assert simulation.accounts[TrainerId("t")].done == pytest.approx(300)


def test_a_trainer_s_budget_ends_it_and_others_get_its_nodes() -> None:
    bounded = submission("t", 1e6, budget_node_hours=100 / 3600 * 0.5, rescale_down_s=0.0)
    trainers = [bounded, submission("u", 1e6)]
    simulation = simulate([Change(0.0, joined=(A,))], trainers, parallel=1)
    assert simulation.core.trainers[TrainerId("t")].reason.startswith("its budget of 0.0138889 charged node-hours")
    done = {str(name): account.done for name, account in simulation.accounts.items()}
    assert done == {"t": pytest.approx(100), "u": pytest.approx(900)}
