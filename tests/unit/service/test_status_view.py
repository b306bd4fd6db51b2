"""What ``pilot status`` says of a trainer that does not come on."""

from __future__ import annotations

from pathlib import Path

from pilot.core.commands import Command, FormGroup, Solve
from pilot.core.coordinator import Coordinator
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
from pilot.core.ids import NodeId, PlanId, TrainerId
from pilot.core.problem import Plan, PlanStatus
from pilot.core.spec import TrainerSpec
from pilot.io.pool_status import SetAsideStatus
from pilot.io.rundir import RunDir
from pilot.observation.monitor import Monitor
from pilot.service.launch_store import LaunchStore
from pilot.service.status_view import QUIET_S, set_aside, trainers

A, T = NodeId("a"), TrainerId("t")


def test_a_script_that_trains_without_a_word_or_never_trains_is_told_after_a_while(tmp_path: Path) -> None:
    core, monitor = Coordinator(), Monitor()
    launches = LaunchStore(RunDir(tmp_path), "pool", None)

    def tell(now_s: float, event: Event) -> list[Command]:
        commands = core.handle(now_s, event)
        monitor.note(now_s, event, commands)
        return commands

    def remarks(now_s: float) -> list[str]:
        monitor.advance(now_s)
        (row,) = trainers(core, monitor, launches)
        return row.remarks

    tell(0.0, PoolChanged(joined=(A,)))
    solve = next(c for c in tell(1.0, TrainerSubmitted(TrainerSpec(T, max_nodes=1))) if isinstance(c, Solve))
    tell(2.0, PlanReady(solve.plan_id, Plan(PlanStatus.OPTIMAL, ((T, 1),), 1.0, planner="dp")))
    assert remarks(QUIET_S) == []
    assert remarks(2.0 + QUIET_S) == ["its script has run for 120 s on a and has not come to session.epochs"]
    form = next(c for c in tell(130.0, WorkerReady(T, A)) if isinstance(c, FormGroup))
    assert remarks(130.0) == []
    tell(131.0, GroupFormed(T, form.generation, 0))
    assert remarks(131.0 + QUIET_S) == ["it trains on 1 nodes but has reported no progress for 120 s"]
    tell(260.0, Progress(T, form.generation, 5, 0, 100))
    assert remarks(261.0) == []


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
    (row,) = trainers(core, monitor, launches)
    assert row.remarks == ["a was set aside: OSError: no /data here"]
    assert core.useless() == 1
