"""What the coordinator's log says between a submission and its first step."""

from __future__ import annotations

import logging

import pytest

from pilot.core.commands import Command, FormGroup, Solve
from pilot.core.coordinator import Coordinator
from pilot.core.events import (
    Event,
    ExitCause,
    GroupFormed,
    PlanReady,
    PoolChanged,
    ScriptChecked,
    TrainerSubmitted,
    WorkerExited,
    WorkerReady,
)
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.problem import Plan, PlanStatus
from pilot.core.trainer.proof import ProofState
from pilot.core.trainer.spec import TrainerSpec
from pilot.history.monitor import Monitor
from pilot.service.durability import live_driver

T, A, B = TrainerId("t"), NodeId("a"), NodeId("b")


def test_the_way_to_the_first_step_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    core, monitor = Coordinator(), Monitor()

    def tell(now_s: float, event: Event) -> list[Command]:
        commands = core.handle(now_s, event)
        monitor.note(now_s, event, commands)
        live_driver.tell(event, commands, monitor)
        return commands

    tell(0.0, PoolChanged(joined=(A, B)))
    solve = next(c for c in tell(1.0, TrainerSubmitted(TrainerSpec(T, max_nodes=2))) if isinstance(c, Solve))
    tell(2.0, PlanReady(solve.plan_id, Plan(PlanStatus.OPTIMAL, ((T, 2),), 1.0)))
    tell(3.0, WorkerReady(T, A))
    form = next(c for c in tell(4.0, WorkerReady(T, B)) if isinstance(c, FormGroup))
    tell(5.0, GroupFormed(T, form.generation, 0, resumed=0))
    tell(5.5, ScriptChecked(T, A, ProofState.DIFFERS, "its loss is a sum"))
    tell(6.0, WorkerExited(T, B, ExitCause.DIED, "killed\nby signal 9"))
    assert [record.getMessage() for record in caplog.records] == [
        "t gets 2 nodes by plan, had 0",
        "t: its script starts on a, b",
        "t: ready on a",
        "t: ready on b",
        "t: training on 2 nodes from scratch at step 0",
        "t: its script, checked on a: differs: its loss is a sum",
        "t: died on b: by signal 9",
        "t: its script starts on b",
    ]
