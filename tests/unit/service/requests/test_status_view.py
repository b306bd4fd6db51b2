"""What ``pilot status`` says about a trainer that makes no progress."""

from __future__ import annotations

import io
import math
import time
from pathlib import Path

import msgspec
from rich.console import Console

from pilot.cli.rows import history_lines, history_view
from pilot.cli.show import show, status_lines
from pilot.core.commands import Command, FormGroup, Solve
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.events import (
    Event,
    ExitCause,
    GroupFormed,
    PlanReady,
    PoolChanged,
    Progress,
    TrainerSubmitted,
    WorkerExited,
    WorkerReady,
)
from pilot.core.ids import Generation, NodeId, PlanId, TrainerId
from pilot.core.plan.problem import Plan, PlanStatus
from pilot.core.trainer.remaining_work import Goal
from pilot.core.trainer.spec import TrainerSpec
from pilot.history.monitor import Monitor
from pilot.history.summary import sentences
from pilot.history.timeline import TimelineMaker
from pilot.history.utilisation import Utilisation
from pilot.protocol.pool_status import KeeperStatus, SetAsideStatus, TrainerStatus, UtilisationStatus
from pilot.rundir.entries import Decision
from pilot.rundir.rundir import RunDir
from pilot.service.requests.ended_pool import NO_JOBS
from pilot.service.requests.launch_store import LaunchStore
from pilot.service.requests.status_view import QUIET_S, About, account, explained, history, set_aside, status, trainers

A, T = NodeId("a"), TrainerId("t")
JOBS = msgspec.structs.replace(NO_JOBS, scheduler="slurm", wanted_nodes=1)
ABOUT = About("p", "s", "", "", 0.0, JOBS, "throughput")
NO_USE = UtilisationStatus(u=None, eq_nodes=1.0, work=0.0, static_work=None)


def test_a_script_that_trains_without_a_word_or_never_trains_is_told_after_a_while(tmp_path: Path) -> None:
    core, monitor = Coordinator(), Monitor()
    launches = LaunchStore(RunDir(tmp_path), "pool", None)

    def tell(now_s: float, event: Event) -> list[Command]:
        commands = core.handle(now_s, event)
        monitor.note(now_s, event, commands)
        return commands

    def remarks(now_s: float) -> list[str]:
        monitor.advance(now_s)
        (row,) = trainers(core, monitor, launches, JOBS)
        return row.remarks

    tell(0.0, PoolChanged(joined=(A,)))
    solve = next(c for c in tell(1.0, TrainerSubmitted(TrainerSpec(T, max_nodes=1))) if isinstance(c, Solve))
    tell(2.0, PlanReady(solve.plan_id, Plan(PlanStatus.OPTIMAL, ((T, 1),), 1.0, planner="dp")))
    assert remarks(QUIET_S) == []
    assert remarks(2.0 + QUIET_S) == ["its script has run for 120 s on a without reaching session.epochs"]
    form = next(c for c in tell(130.0, WorkerReady(T, A)) if isinstance(c, FormGroup))
    assert remarks(130.0) == []
    tell(131.0, GroupFormed(T, form.generation, 0))
    assert remarks(131.0 + QUIET_S) == ["it is training on 1 node but has reported no progress for 120 s"]
    tell(260.0, Progress(T, form.generation, 5, 0, 100))
    assert remarks(261.0) == []


def test_deaths_with_steps_between_them_are_told(tmp_path: Path) -> None:
    core, monitor = Coordinator(), Monitor()
    launches = LaunchStore(RunDir(tmp_path), "pool", None)
    now_s = 0.0

    def tell(event: Event) -> list[Command]:
        nonlocal now_s
        now_s += 1.0
        commands = core.handle(now_s, event)
        monitor.note(now_s, event, commands)
        return commands

    def remarks() -> list[str]:
        monitor.advance(now_s)
        (row,) = trainers(core, monitor, launches, JOBS)
        return row.remarks

    tell(PoolChanged(joined=(A,)))
    solve = next(c for c in tell(TrainerSubmitted(TrainerSpec(T, max_nodes=1))) if isinstance(c, Solve))
    tell(PlanReady(solve.plan_id, Plan(PlanStatus.OPTIMAL, ((T, 1),), 1.0, planner="dp")))
    for times in range(3):
        assert remarks() == []
        form = next(c for c in tell(WorkerReady(T, A)) if isinstance(c, FormGroup))
        tell(GroupFormed(T, form.generation, 20 * times, resumed=20 * times))
        tell(Progress(T, form.generation, 20 * times + 20, 0, 100))
        tell(WorkerExited(T, A, ExitCause.DIED, "killed by SIGKILL"))
    (line,) = remarks()
    assert line == (
        "its training processes have died 3 times within 30 minutes (3 on a); pilot events --trainer t tells how"
    )
    now_s += 1800.0
    assert "have died" not in " ".join(remarks())


def test_what_is_set_aside_is_told_with_its_reason(tmp_path: Path) -> None:
    core, monitor = Coordinator(), Monitor()
    launches = LaunchStore(RunDir(tmp_path), "pool", None)
    for now_s, event in (
        (0.0, PoolChanged(joined=(A, NodeId("b")))),
        (1.0, TrainerSubmitted(TrainerSpec(T, max_nodes=1))),
        (2.0, PlanReady(PlanId(2), Plan(PlanStatus.OPTIMAL, ((T, 1),), 1.0))),
        (10.0, WorkerExited(T, A, ExitCause.RAISED, "Traceback\nOSError: no /data here\n(log: /l)")),
    ):
        monitor.note(now_s, event, core.handle(now_s, event))
    assert set_aside(core, 10.0) == [SetAsideStatus(node=A, trainer=T, left_s=1800.0, reason="OSError: no /data here")]
    (row,) = trainers(core, monitor, launches, JOBS)
    assert row.remarks == ["a was set aside: OSError: no /data here"]
    assert core.useless() == 1
    assert row.waits == "waiting for a plan"
    core.handle(11.0, PoolChanged(lost=(NodeId("b"),)))
    (row,) = trainers(core, monitor, launches, JOBS)
    assert row.waits == "waiting for 1 more node; 1 free node set aside for it (pilot nodes)"


def test_a_trainer_says_what_it_waits_for_and_how_far_it_is(tmp_path: Path) -> None:
    core, monitor = Coordinator(), Monitor()
    launches = LaunchStore(RunDir(tmp_path), "pool", None)
    b = NodeId("b")

    def tell(now_s: float, event: Event) -> list[Command]:
        commands = core.handle(now_s, event)
        monitor.note(now_s, event, commands)
        return commands

    def row(now_s: float, keeper: KeeperStatus = JOBS) -> TrainerStatus:
        monitor.advance(now_s)
        return trainers(core, monitor, launches, keeper)[0]

    tell(0.0, TrainerSubmitted(TrainerSpec(T, min_nodes=2, max_nodes=4)))
    assert row(1.0).waits == "waiting for 2 nodes"
    tell(1.0, PoolChanged(joined=(A,)))
    at_two = time.mktime((*time.localtime()[:3], 2, 10, 0, 0, 0, -1))
    queued = msgspec.structs.replace(JOBS, pending=1, waited_s=180.0, expected_unix_s=at_two)
    assert row(2.0, queued).waits == "waiting for 1 more node; in the queue for 3 min 0 s, Slurm expects 02:10"
    solve = next(c for c in tell(3.0, PoolChanged(joined=(b,))) if isinstance(c, Solve))
    tell(4.0, PlanReady(solve.plan_id, Plan(PlanStatus.OPTIMAL, ((T, 2),), 1.0, planner="dp")))
    assert (row(16.0).waits, row(16.0).elapsed_s) == ("importing and setting up on 2 nodes for 12 s", 16.0)
    assert monitor.decisions == [(4.0, "t gets 2 nodes by plan, had 0")]
    tell(17.0, WorkerReady(T, A))
    form = next(c for c in tell(18.0, WorkerReady(T, b)) if isinstance(c, FormGroup))
    assert row(18.0).waits == "its 2 nodes are connecting to each other"
    tell(20.0, GroupFormed(T, form.generation, 0))
    metrics = (("epoch_samples", 1000.0), ("epochs", 3.0), ("loss", 0.5))
    tell(30.0, Progress(T, form.generation, 50, 1, 1500, samples_per_s=100.0, metrics=metrics))
    seen = row(31.0)
    assert (seen.waits, seen.epoch, seen.epochs, seen.steps) == ("", 1, 3, None)
    assert (seen.metrics, seen.left_s, seen.elapsed_s) == ({"loss": 0.5}, 15.0, 11.0)


def test_why_a_trainer_that_has_just_come_has_its_nodes() -> None:
    core, monitor = Coordinator(CoordinatorConfig(arrivals_s=2.0)), Monitor()
    for event in (PoolChanged(joined=(A,)), TrainerSubmitted(TrainerSpec(T))):
        monitor.note(0.0, event, core.handle(0.0, event))
    [said, *_] = explained(ABOUT, core, monitor, T).sentences
    assert said == "t started on 1 node, the fewest that it can use; a plan that may give it more follows shortly."


def test_work_of_trainers_that_count_otherwise_adds_up_in_units_of_their_rate_on_one_node() -> None:
    """One counts samples by the hundred; the other is a script for torchrun, for which only steps are seen."""
    core, monitor = Coordinator(), Monitor()
    for trainer, rate in (("samples", 4000.0), ("steps", 5.0)):
        spec = TrainerSpec(TrainerId(trainer), curve=Curve.of([(1, rate), (2, 1.5 * rate)]), fixed_curve=True)
        monitor.note(0.0, TrainerSubmitted(spec), core.handle(0.0, TrainerSubmitted(spec)))
    curves = account(core, monitor).curves
    assert [[curve.at(1), curve.at(2)] for curve in curves.values()] == [[1.0, 1.5]] * 2


def test_how_long_is_left_of_a_loop() -> None:
    assert Goal.of({"iterations": 100.0}).left_s(0, 25, 800, 16.0) == 150.0
    assert Goal.of({"iterations": 100.0}).left_s(0, 0, 0, 16.0) is None
    assert Goal.of({"epochs": 4.0}).left_s(2, 9, 200, 10.0) == 20.0, "a stream's epoch is as long as those before it"
    assert Goal.of({"epochs": 4.0}).left_s(0, 9, 200, 10.0) is None
    assert Goal.of({"epochs": 4.0, "epoch_samples": math.nan}).left_s(2, 9, 200, None) is None


def test_node_hours_are_told_as_the_site_charges_them_wherever_they_are_told(tmp_path: Path) -> None:
    config = CoordinatorConfig(budget_node_hours=10.0, charge_factor=0.5)
    core, monitor, nodes = Coordinator(config), Monitor(), TimelineMaker(Coordinator(config))
    launches = LaunchStore(RunDir(tmp_path), "pool", None)
    for number, (now_s, event) in enumerate(
        (
            (0.0, PoolChanged(joined=(A,))),
            (0.0, TrainerSubmitted(TrainerSpec(T, max_nodes=1, budget_node_hours=4.0))),
            (0.0, PlanReady(PlanId(2), Plan(PlanStatus.OPTIMAL, ((T, 1),), 1.0))),
            (0.0, WorkerReady(T, A)),
            (7200.0, GroupFormed(T, Generation(1), 0)),
        )
    ):
        commands = core.handle(now_s, event)
        monitor.note(now_s, event, commands)
        nodes.note(Decision(number, now_s, event, tuple(commands)))
    monitor.advance(7200.0)
    told = status(ABOUT, core, monitor, launches, NO_USE)
    became = history(ABOUT, core, monitor, launches, T)
    use = Utilisation(1.0, 1.0, None)
    summary = sentences("p", "s", nodes.made(), core.trainers, use, core.config.charge_factor, ())
    screen = Console(width=200, record=True, file=io.StringIO())
    show(screen, status_lines(told, 200))
    show(screen, history_view(became, 200))
    show(screen, history_lines(told, 200))
    shown = " ".join([screen.export_text(), *summary])
    unit = "charged node-hours (0.5 for an hour on a node)"
    assert f"budget: 10% used, 1 of 10 {unit}" in shown
    assert f"1 {unit} so far" in shown
    assert f"used 1 of its budget of 4 {unit}: 0 steps" in shown
    assert " 1.00 " in shown, "ls --all"
    assert f"held up to 1 node: 1 {unit} in total" in shown
    assert "2.00" not in shown
    assert (told.trainers[0].used_node_hours, told.trainers[0].node_seconds) == (1.0, 7200.0)
