"""Facts for people about the pool and the trainers, from the journal's entries alone."""

from __future__ import annotations

import math

import pytest

from pilot import planners
from pilot.core.commands import CloseTrainer, DissolveGroup, FormGroup, Outcome, Solve, StartWorker
from pilot.core.curves.curve import Curve
from pilot.core.events import (
    CheckpointPublished,
    ExitCause,
    GroupBroken,
    GroupFormed,
    PlanFailed,
    PlanReady,
    PoolChanged,
    Progress,
    TrainerCancelled,
    TrainerSubmitted,
    WorkerExited,
    WorkerReady,
)
from pilot.core.ids import Generation, NodeId, PlanId, TrainerId
from pilot.core.plan.problem import Plan, PlanStatus, Problem
from pilot.core.trainer.spec import TrainerSpec
from pilot.history.monitor import REMARKS_KEPT, SETS_KEPT, Monitor
from pilot.history.utilisation import WorkAccount, utilisation
from pilot.service.requests.status_view import best_for

T, U = TrainerId("t"), TrainerId("u")
A, B = NodeId("a"), NodeId("b")
PROBLEM = Problem(2, 120.0, ())


def submitted(*trainers: TrainerId) -> Monitor:
    monitor = Monitor()
    monitor.note(0.0, PoolChanged(joined=(A, B)), [])
    for trainer in trainers:
        monitor.note(0.0, TrainerSubmitted(TrainerSpec(trainer, max_nodes=2)), [])
    return monitor


def group(
    monitor: Monitor,
    at_s: float,
    generation: int,
    step: int,
    *members: NodeId,
    ordered_s: float | None = None,
    previous: int | None = None,
    resumed: int | None = None,
) -> None:
    """A group is ordered and forms, at ``at_s`` unless it was ordered before."""
    before = Generation(previous) if previous is not None else None
    ordered = [FormGroup(T, Generation(generation), members, before, "")]
    monitor.note(at_s if ordered_s is None else ordered_s, PoolChanged(), ordered)
    monitor.note(at_s, GroupFormed(T, Generation(generation), step, resumed), [])


def test_what_is_kept_does_not_grow_with_all_that_has_ended() -> None:
    monitor = Monitor(ended_kept=2)
    monitor.note(0.0, PoolChanged(joined=(A,)), [])
    for number in range(SETS_KEPT + 5):
        now_s, trainer = 10.0 * number, TrainerId(f"t{number}")
        solves = [Solve(PlanId(2 * number + n), PROBLEM, "") for n in (0, 1)]
        monitor.note(now_s, TrainerSubmitted(TrainerSpec(trainer)), solves)
        monitor.note(now_s + 1, PlanReady(solves[1].plan_id, Plan(PlanStatus.OPTIMAL, (), 0.0)), [])
        monitor.note(now_s + 4, TrainerCancelled(trainer), [CloseTrainer(trainer, Outcome.CANCELLED, "")])
    assert list(monitor.trainers) == [TrainerId(f"t{SETS_KEPT + n}") for n in (3, 4)]
    assert monitor.asked == {}
    assert {there: open_for.seconds for there, open_for in monitor.open_for_s.items()} == {(): 4.0 * (SETS_KEPT + 5)}
    found = utilisation(account(monitor, CURVE), best_for(account(monitor, CURVE)))
    assert (found.eq_nodes, found.static_work, found.u) == (1.0, None, None)


def test_time_on_nodes_and_node_seconds() -> None:
    monitor = submitted(T)
    group(monitor, 2.0, 1, 0, A, B, ordered_s=1.0)
    monitor.note(12.0, PoolChanged(lost=(B,)), [DissolveGroup(T, Generation(1), (A,), "")])
    group(monitor, 13.0, 2, 5, A, ordered_s=12.0)
    monitor.advance(20.0)
    assert dict(monitor.trainers[T].seconds_on) == {2: 10.0, 1: 7.0}
    assert monitor.node_seconds == 2 * 12 + 8
    assert monitor.joined_s == {A: 0.0}


def test_a_planned_switch_pauses_for_what_was_measured() -> None:
    monitor = submitted(T)
    group(monitor, 0.0, 1, 0, A)
    group(monitor, 10.0, 2, 50, A, B, ordered_s=9.0, previous=1)
    monitor.note(20.0, Progress(T, Generation(2), 60, 0, 600, rescale_s=0.5, stall_s=0.4), [])
    assert dict(monitor.trainers[T].seconds_on) == {1: 10.0, 2: 9.5}
    assert monitor.trainers[T].longest_stall_s == 0.4


def test_steps_that_only_the_dead_had_done_are_redone_and_those_from_a_checkpoint_are_not_counted_here() -> None:
    monitor = submitted(T)
    group(monitor, 0.0, 1, 0, A, B)
    monitor.note(1.0, Progress(T, Generation(1), 10, 0, 100), [])
    group(monitor, 2.0, 2, 9, A)
    assert monitor.trainers[T].redone_steps == 1
    group(monitor, 3.0, 3, 4, A, resumed=4)
    assert monitor.trainers[T].redone_steps == 1
    assert monitor.trainers[T].known_step == 4


def test_late_progress_of_an_earlier_generation_is_not_the_newest() -> None:
    monitor = submitted(T)
    for generation in (1, 2):
        group(monitor, 0.0, generation, 10 * (generation - 1), A)
    monitor.note(1.0, Progress(T, Generation(1), 10, 0, 100, 5.0, metrics=(("loss", 9.0),)), [])
    record = monitor.trainers[T]
    assert (record.samples_per_s, record.metrics, record.progress_s) == (None, {}, None)


def test_a_broken_group_trains_no_more_and_an_ended_trainer_is_not_there() -> None:
    monitor = submitted(T)
    group(monitor, 0.0, 1, 0, A)
    monitor.note(4.0, GroupBroken(T, Generation(1), ""), [])
    monitor.note(6.0, PoolChanged(), [CloseTrainer(T, Outcome.CANCELLED, "")])
    monitor.advance(50.0)
    assert dict(monitor.trainers[T].seconds_on) == {1: 4.0}
    assert {there: open_for.seconds for there, open_for in monitor.open_for_s.items()} == {(T,): 6.0}
    assert monitor.trainers[T].ended_s == 6.0


def test_solves_and_warm_ups_are_timed() -> None:
    monitor = submitted(T)
    plan = Plan(PlanStatus.OPTIMAL, ((T, 2),), 1.0, build_s=0.1, solve_s=0.2)
    monitor.note(1.0, PoolChanged(), [Solve(PlanId(1), PROBLEM, "")])
    monitor.note(2.0, PoolChanged(), [Solve(PlanId(2), PROBLEM, "")])
    monitor.note(2.0, PlanFailed(PlanId(1), "superseded"), [])
    monitor.note(2.5, PlanReady(PlanId(2), plan), [StartWorker(T, A, "")])
    monitor.note(2.5, PlanReady(PlanId(2), plan), [])
    monitor.note(5.5, WorkerReady(T, A), [])
    assert [(s.build_s, s.solve_s, s.answer_s) for s in monitor.solves] == [(0.1, 0.2, 0.5)]
    assert monitor.failed_solves == 1
    assert monitor.last == (PROBLEM, plan)
    assert list(monitor.warm_ups_s) == [3.0]


def test_remarks_are_few_and_not_repeated() -> None:
    monitor = submitted(T)
    for number in range(100):
        monitor.remark(1.0, {"trainer": T, "text": f"remark {number // 2}"})
    assert list(monitor.trainers[T].remarks) == [f"remark {n}" for n in range(50 - REMARKS_KEPT, 50)]
    monitor.remark(1.0, {"text": "of the pool"})
    assert monitor.pool_remarks == ["of the pool"]


def test_a_checkpoint_that_failed_is_remembered_until_one_is_written() -> None:
    monitor = submitted(T)
    for step in (10, 20):
        monitor.remark(1.0, {"trainer": T, "failed": "checkpoint", "text": f"a checkpoint at step {step} failed"})
    record = monitor.trainers[T]
    assert (record.failed_checkpoint, record.remarks) == ("a checkpoint at step 20 failed", [])
    monitor.note(2.0, CheckpointPublished(T, 30, 0.1), [])
    assert record.failed_checkpoint == ""


def test_what_keeps_a_process_is_remembered_until_that_process_has_ended() -> None:
    monitor = submitted(T)
    monitor.note(1.0, PoolChanged(), [StartWorker(T, A, ""), StartWorker(T, B, "")])
    for node in (A, B):
        monitor.remark(2.0, {"trainer": T, "holds": node, "text": f"a thread on {node}"})
    monitor.note(3.0, WorkerExited(T, B, ExitCause.STOPPED), [])
    assert monitor.trainers[T].holds == {A: "a thread on a"}


def test_for_what_a_step_waits_is_told_until_it_is_done() -> None:
    monitor = submitted(T)
    group(monitor, 0.0, 1, 0, A, B)
    slow, record = "b is slow, the others wait for it", monitor.trainers[T]
    monitor.remark(1.0, {"trainer": T, "failed": "step", "text": slow})
    assert (record.delayed, record.remarks) == (slow, [slow])
    monitor.note(2.0, Progress(T, Generation(1), 1, 0, 10), [])
    assert record.delayed == ""


def account(monitor: Monitor, curve: Curve, max_parallel: int = 10) -> WorkAccount:
    return WorkAccount(
        specs=tuple(TrainerSpec(t, max_nodes=2) for t in monitor.trainers),
        curves=dict.fromkeys(monitor.trainers, curve),
        seconds_on={t: r.seconds_on for t, r in monitor.trainers.items()},
        open_for_s={there: open_for.seconds for there, open_for in monitor.open_for_s.items()},
        open_node_seconds=sum(open_for.node_seconds for open_for in monitor.open_for_s.values()),
        max_parallel=max_parallel,
    )


CURVE = Curve.of([(1, 10.0), (2, 16.0)])


def test_u_is_one_where_the_best_was_done_all_the_time() -> None:
    monitor = submitted(T)
    group(monitor, 0.0, 1, 0, A, B)
    monitor.advance(100.0)
    found = utilisation(account(monitor, CURVE), planners.make("dp"))
    assert (found.eq_nodes, found.work, found.static_work, found.u) == (2.0, 1600.0, 1600.0, 1.0)


def test_u_compares_with_the_best_division_of_equivalent_nodes() -> None:
    """Two trainers on eq_nodes = 1.5: one node gives 10, two give 20 (one each), so 1.5 nodes give 15 samples/s."""
    monitor = submitted(T, U)
    group(monitor, 0.0, 1, 0, A)
    monitor.note(50.0, PoolChanged(lost=(B,)), [])
    monitor.advance(100.0)
    found = utilisation(account(monitor, CURVE), planners.make("dp"))
    assert found.eq_nodes == 1.5
    assert found.u == pytest.approx(1000 / 1500)
    alone = utilisation(account(monitor, CURVE, max_parallel=1), planners.make("dp"))
    assert alone.u == pytest.approx(1000 / 1300)


def test_there_is_no_u_without_trainers_or_a_planner() -> None:
    empty = utilisation(account(Monitor(), CURVE), planners.make("dp"))
    assert (empty.u, empty.eq_nodes) == (None, 0.0)
    monitor = submitted(T)
    monitor.advance(10.0)
    assert utilisation(account(monitor, CURVE), None).u is None
    assert not math.isnan(utilisation(account(monitor, CURVE), planners.make("dp")).work)
