"""The sentences of ``pilot status`` about trainers, and its numbers."""

from __future__ import annotations

import io
import time
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from pilot import planners
from pilot.cli.rows import history_lines, history_view
from pilot.cli.show import show, status_lines
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.events import (
    ExitCause,
    GroupFormed,
    NodeCleared,
    PlanReady,
    PoolChanged,
    Progress,
    TrainerSubmitted,
    WorkerExited,
    WorkerReady,
)
from pilot.core.ids import Generation, PlanId, TrainerId
from pilot.core.plan.problem import Plan, PlanStatus
from pilot.core.trainer.spec import TrainerSpec
from pilot.history.summary import sentences
from pilot.history.timeline import TimelineMaker
from pilot.history.utilisation import Utilisation
from pilot.protocol.pool_status import KeeperStatus, SetAsideStatus, TrainerStatus
from pilot.rundir.entries import Decision
from pilot.rundir.rundir import RunDir
from pilot.service.requests.launch_store import LaunchStore
from pilot.service.requests.status_view import About, PoolView, account
from pilot.service.requests.study_store import StudyStore
from pilot.service.requests.waiting import QUIET_S
from tests.unit.service.stage import A, B, Stage, T

JOBS = KeeperStatus(scheduler="slurm", wanted_nodes=1)


class Shown(Stage):
    """A core, and the view of it."""

    def __init__(self, config: CoordinatorConfig | None = None) -> None:
        super().__init__(config)
        self._keeper = JOBS
        launches = LaunchStore(RunDir(Path("run")), "pool", None)
        studies = StudyStore(RunDir(Path("run")), launches)
        self.view = PoolView(self.core, self.monitor, launches, studies, self._about, self.clock)

    def _about(self) -> About:
        return About("p", "s", "", "", 0.0, self._keeper, "throughput")

    def row(self, now_s: float, keeper: KeeperStatus = JOBS) -> TrainerStatus:
        """The first trainer's status."""
        self.now_s, self._keeper = now_s, keeper
        return self.view.trainers().trainers[0]


def test_a_script_that_trains_without_a_word_or_never_trains_is_told_after_a_while() -> None:
    stage = Shown()
    stage.at(2.0).starts(A)
    assert stage.row(QUIET_S).remarks == []
    late = ["its script has run for 2m00s on a without reaching session.epochs"]
    assert stage.row(2.0 + QUIET_S).remarks == late
    form = stage.at(130.0).forms(A)
    assert stage.row(130.0).remarks == []
    stage.at(131.0).post(GroupFormed(T, form.generation, 0))
    quiet = ["it is training on 1 node but has reported no progress for 2m00s"]
    assert stage.row(131.0 + QUIET_S).remarks == quiet
    stage.at(260.0).post(Progress(T, form.generation, 5, 0, 100))
    assert stage.row(261.0).remarks == []


def test_deaths_with_steps_between_them_are_told() -> None:
    stage = Shown()
    stage.at(2.0).starts(A)
    for times in range(3):
        now_s = 10.0 * (times + 1)
        assert stage.row(now_s).remarks == []
        form = stage.at(now_s).forms(A)
        stage.at(now_s + 1).post(GroupFormed(T, form.generation, 20 * times, resumed=20 * times))
        stage.at(now_s + 2).post(Progress(T, form.generation, 20 * times + 20, 0, 100))
        stage.at(now_s + 3).post(WorkerExited(T, A, ExitCause.DIED, "killed by SIGKILL"))
    (line,) = stage.row(34.0).remarks
    assert line == (
        "its training processes have died 3 times within 30 minutes (3 on a); pilot events --trainer t tells how"
    )
    assert "have died" not in " ".join(stage.row(1834.0).remarks)


def test_what_is_set_aside_is_told_with_its_reason() -> None:
    stage = Shown()
    stage.post(PoolChanged(joined=(A, B)), TrainerSubmitted(TrainerSpec(T, max_nodes=1)))
    stage.plan(t=1)
    stage.at(10.0).post(WorkerExited(T, A, ExitCause.RAISED, "Traceback\nOSError: no /data here\n(log: /l)"))
    reason = "OSError: no /data here"
    assert stage.view.nodes().set_aside == [SetAsideStatus(node=A, trainer=T, left_s=1800.0, reason=reason)]
    row = stage.row(10.0)
    assert (row.remarks, row.waits) == ([f"a was set aside: {reason}"], "waiting for a plan")
    assert row.warnings == [f"a is set aside for t for 30m00s: {reason}"]
    assert len(stage.core.useless()) == 1
    stage.at(11.0).post(PoolChanged(lost=(B,)))
    assert stage.row(11.0).waits == "waiting for 1 more node; 1 free node set aside for it (pilot nodes)"
    stage.at(12.0).post(NodeCleared(A))
    assert stage.row(12.0).warnings == [], "what is over is history"


def test_what_has_happened_to_the_pool_is_history() -> None:
    stage = Shown()
    stage.remark(text="the pool is up again; it was down for 10.8 s")
    status = stage.view.status()
    assert (len(status.remarks), status.warnings) == (1, [])


def test_a_trainer_s_warnings_are_what_concerns_its_results_and_its_budget() -> None:
    stage = Shown()
    stage.post(PoolChanged(joined=(A,)), TrainerSubmitted(TrainerSpec(T, budget_node_hours=0.005)))
    stage.plan(t=1)
    stage.remark(trainer=T, text="n1 was stuck, the others wait for it")
    stage.remark(trainer=T, text="its gradient differs", lasting="yes")
    assert stage.row(1.0).warnings == ["its gradient differs"]
    due = stage.row(0.9 * 0.005 * 3600)
    assert due.warnings == ["its gradient differs", "it has used 0.0045 of its budget of 0.005 node-hours"]
    assert len(due.remarks) == 2


def test_a_bound_that_leaves_nodes_idle_is_told_with_those_that_wait_for_it() -> None:
    stage = Shown(CoordinatorConfig(max_parallel_trainers=1))
    stage.post(PoolChanged(joined=(A, B)), TrainerSubmitted(TrainerSpec(T, max_nodes=1)))
    stage.plan(t=1)
    assert stage.view.status().warnings == ["1 node idle because of the trainers' --max-nodes (up to 1): none waits"]
    stage.post(TrainerSubmitted(TrainerSpec(TrainerId("u"))))
    assert stage.view.status().warnings == ["1 node idle because of --max-parallel-trainers 1: 1 trainer waits"]
    assert [row.waits for row in stage.view.status().trainers][
        1
    ] == "waiting for another trainer to end: 1 run at a time"


def test_one_that_a_plan_left_out_waits_for_those_that_share_the_pool() -> None:
    stage = Shown()
    specs = [TrainerSubmitted(TrainerSpec(TrainerId(name), max_nodes=1)) for name in "tuv"]
    stage.post(PoolChanged(joined=(A, B)), *specs)
    left_out = Plan(PlanStatus.OPTIMAL, ((T, 1), (TrainerId("u"), 1)), 1.0, first_out=TrainerId("v"))
    assert stage.pending.solve is not None
    stage.post(PlanReady(stage.pending.solve.plan_id, left_out))
    shared = "waiting for another trainer to end: 2 share the pool, and more would hardly use it better"
    assert [row.waits for row in stage.view.status().trainers][2] == shared
    assert stage.view.status().warnings == []
    assert stage.view.explain("v").sentences[0] == "v was not part of the last plan."


@pytest.mark.parametrize(
    ("nodes", "words"), [(1, "waiting for 1 more node: it needs 2, and the pool has 1"), (0, "waiting for 2 nodes")]
)
def test_where_the_nodes_suffice_for_nobody_no_other_trainer_is_to_end(nodes: int, words: str) -> None:
    stage = Shown()
    specs = [TrainerSubmitted(TrainerSpec(TrainerId(name), 2, 2)) for name in "tu"]
    stage.post(PoolChanged(joined=(A, B)), *specs)
    stage.post(PoolChanged(lost=(A, B)[nodes:]))
    assert stage.pending.solve is not None
    nobody = planners.make("dp")(stage.pending.solve.problem)
    assert nobody.first_out == T
    stage.post(PlanReady(stage.pending.solve.plan_id, nobody))
    assert [row.waits for row in stage.view.status().trainers] == [words] * 2


def test_a_trainer_says_what_it_waits_for_and_how_far_it_is() -> None:
    stage = Shown()
    stage.at(0.0).post(TrainerSubmitted(TrainerSpec(T, min_nodes=2, max_nodes=4)))
    assert stage.row(1.0).waits == "waiting for 2 nodes"
    stage.at(1.0).post(PoolChanged(joined=(A,)))
    at_two = time.mktime((*time.localtime()[:3], 2, 10, 0, 0, 0, -1))
    queued = msgspec.structs.replace(JOBS, pending=1, waited_s=180.0, expected_unix_s=at_two)
    assert (
        stage.row(2.0, queued).waits
        == "waiting for 1 more node: it needs 2, and the pool has 1; in the queue for 3m00s, Slurm expects 02:10"
    )
    stage.at(3.0).post(PoolChanged(joined=(B,)))
    stage.at(4.0).plan(t=2)
    row = stage.row(16.0)
    assert (row.waits, row.elapsed_s) == ("importing and setting up on 2 nodes for 12s", 16.0)
    assert stage.monitor.decisions == [(4.0, "t gets 2 nodes by plan, had 0")]
    stage.at(17.0).post(WorkerReady(T, A))
    form = stage.at(18.0).forms(B)
    assert stage.row(18.0).waits == "its 2 nodes are connecting to each other"
    stage.at(20.0).post(GroupFormed(T, form.generation, 0))
    metrics = (("epoch_samples", 1000.0), ("epochs", 3.0), ("loss", 0.5))
    stage.at(30.0).post(Progress(T, form.generation, 50, 1, 1500, samples_per_s=100.0, metrics=metrics))
    row = stage.row(31.0)
    assert (row.waits, row.epoch, row.epochs, row.steps) == ("", 1, 3, None)
    assert (row.metrics, row.left_s, row.elapsed_s) == ({"loss": 0.5}, 15.0, 11.0)
    stage.now_s = 30.0 + 7200.0
    sentences = stage.view.explain(T).sentences
    assert any("on 2 nodes (2.0 h ago)" in sentence for sentence in sentences)
    assert not any("in rounds" in sentence for sentence in sentences)
    stage.monitor.trainers[T].metrics |= {"round": 12.0, "exchange_s": 3.1, "inner_step_s": 0.2}
    in_rounds = "It trains in rounds; round 12: exchange 3.1 s, inner step 0.2 s."
    assert in_rounds in stage.view.explain(T).sentences


def test_why_a_trainer_that_has_just_come_has_its_nodes() -> None:
    stage = Shown(CoordinatorConfig(arrivals_s=2.0))
    stage.post(PoolChanged(joined=(A,)), TrainerSubmitted(TrainerSpec(T)))
    [first, *_] = stage.view.explain(T).sentences
    assert first == "t started on 1 node, the fewest that it can use; a plan that may give it more follows shortly."


def test_work_of_trainers_that_count_otherwise_adds_up_in_units_of_their_rate_on_one_node() -> None:
    """One counts samples by the hundred; the other is a script for torchrun, for which only steps are seen."""
    stage = Shown()
    for trainer, rate in (("samples", 4000.0), ("steps", 5.0)):
        spec = TrainerSpec(TrainerId(trainer), curve=Curve.of([(1, rate), (2, 1.5 * rate)]), fixed_curve=True)
        stage.at(0.0).post(TrainerSubmitted(spec))
    curves = account(stage.core, stage.monitor).curves
    assert [[curve.at(1), curve.at(2)] for curve in curves.values()] == [[1.0, 1.5]] * 2


def test_node_hours_are_told_as_the_site_charges_them_wherever_they_are_told() -> None:
    config = CoordinatorConfig(budget_node_hours=10.0, charge_factor=0.5)
    stage, nodes = Shown(config), TimelineMaker(Coordinator(config))
    for number, (now_s, event) in enumerate(
        (
            (0.0, PoolChanged(joined=(A,))),
            (0.0, TrainerSubmitted(TrainerSpec(T, max_nodes=1, budget_node_hours=4.0))),
            (0.0, PlanReady(PlanId(2), Plan(PlanStatus.OPTIMAL, ((T, 1),), 1.0))),
            (0.0, WorkerReady(T, A)),
            (7200.0, GroupFormed(T, Generation(1), 0)),
        )
    ):
        nodes.note(Decision(number, now_s, event, tuple(stage.at(now_s).post(event))))
    status, history = stage.view.status(), stage.view.history(T)
    summary = sentences("p", "s", nodes.made(), stage.core.trainers, Utilisation(1.0, 1.0, None), 0.5, ())
    screen = Console(width=200, record=True, file=io.StringIO())
    for lines in (status_lines(status, 200), history_view(history, 200), history_lines(status, 200)):
        show(screen, lines)
    shown = " ".join([screen.export_text(), *summary])
    unit = "charged node-hours (0.5 for an hour on a node)"
    for text in (
        f"used: 1 of the budget of 10 {unit}",
        f"used 1 of its budget of 4 {unit}: 0 steps",
        "2h00m           1 ",
        f"held up to 1 node: 1 {unit} in total",
    ):
        assert text in shown
    assert " 2 " not in shown
    assert (status.trainers[0].used_node_hours, status.trainers[0].node_seconds) == (1.0, 7200.0)
