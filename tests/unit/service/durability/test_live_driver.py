"""The coordinator's log between a submission and its first step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from pilot import __version__
from pilot.core.commands import FormGroup, Solve
from pilot.core.coordinator import Coordinator
from pilot.core.events import (
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
from pilot.rundir.journal import FORMAT, Header
from pilot.service.durability.journal_writer import JournalWriter
from pilot.service.durability.live_driver import LiveDriver
from pilot.service.durability.restore import Restored

T, A, B = TrainerId("t"), NodeId("a"), NodeId("b")


def test_the_log_has_the_events_with_their_numbers_also_after_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    journal = JournalWriter.create(tmp_path / "journal.jsonl", Header(FORMAT, __version__, "p", 1.7e9, {}, {}))
    clock: Callable[[], float] = iter(range(100)).__next__
    driver = LiveDriver(Coordinator(), journal, clock)
    driver.post(PoolChanged(joined=(A, B)))
    driver.post(TrainerSubmitted(TrainerSpec(T, max_nodes=2)))
    assert isinstance(driver.pending.solve, Solve)
    driver.post(PlanReady(driver.pending.solve.plan_id, Plan(PlanStatus.OPTIMAL, ((T, 2),), 1.0)))
    driver.post(WorkerReady(T, A))
    driver.remark(trainer=T, text="a batch was skipped")
    driver.post(WorkerReady(T, B))
    [forming] = driver.pending.forming.values()
    assert isinstance(forming.command, FormGroup) and forming.event == 6
    again = LiveDriver(Coordinator(), journal, clock)
    again.adopt(Restored(driver.core, driver.books))
    again.post(GroupFormed(T, forming.command.generation, 0, resumed=0))
    again.post(ScriptChecked(T, A, ProofState.DIFFERS, "its loss is a sum"))
    again.post(WorkerExited(T, B, ExitCause.DIED, "killed\nby signal 9"))
    journal.close()
    assert [record.getMessage() for record in caplog.records] == [
        "a, b joined (event 1)",
        "t: submitted, for 1 to 2 nodes (event 2)",
        "t: gets 2 nodes by plan, had 0 (event 3)",
        "t: starts on a (event 3)",
        "t: starts on b (event 3)",
        "t: ready on a after 1.0 s (event 4)",
        "t: a batch was skipped (event 5)",
        "t: ready on b after 3.0 s (event 6)",
        "t: training on 2 nodes from scratch at step 0 (event 7)",
        "t: script check: differs: its loss is a sum (event 8)",
        "t: died on b: by signal 9 (event 9)",
        "t: starts on b (event 9)",
    ]
