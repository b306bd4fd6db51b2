"""``pilot status`` as people see it."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from pilot.cli.asking import JSON_FORMAT, to_json
from pilot.cli.show import console, status_view
from pilot.core.problem import PlanStatus
from pilot.core.trainer import Phase
from pilot.io.pool_status import (
    KeeperStatus,
    NodeStatus,
    PoolStatus,
    SolveStatus,
    TimeSummary,
    TrainerStatus,
    UtilisationStatus,
)

TRAINER = TrainerStatus(
    trainer="vit",
    uid="0123456789abcdef" * 2,
    phase=Phase.FAILED,
    reason="it raised\n(log: " + "/a/long/path" * 20 + ")",
    directory="/run/trainers/vit",
    nodes=["n1"],
    target=["n1", "n2"],
    warming=["n2"],
    min_nodes=1,
    max_nodes=4,
    fixed_curve=False,
    generation=3,
    step=40,
    epoch=1,
    samples=1280,
    samples_per_s=None,
    measured_samples_per_s={1: 100.0, 10: 900.0},
    rescale_up_s=20.0,
    rescale_down_s=10.0,
    metrics={"loss": 0.25},
    rescales_up=1,
    rescales_down=0,
    preemptions=0,
    losses=0,
    worker_deaths=0,
    lost_steps=0,
    redone_steps=0,
    longest_stall_s=0.5,
    submitted_s=1.0,
    started_s=2.0,
    ended_s=None,
    remarks=["a remark"],
)
STATUS = PoolStatus(
    coordinator="polaris-1",
    site="polaris",
    endpoint="tcp://10.0.0.1:1",
    run_dir="/run",
    now_s=100.0,
    draining=False,
    node_seconds=60.0,
    pool=[NodeStatus(node="n1", host="n1", trainer="vit", leaving=True, set_aside=True, joined_s=40.0)],
    trainers=[TRAINER],
    solves=SolveStatus(
        count=2,
        failed=0,
        last_status=PlanStatus.OPTIMAL,
        planner="milp",
        build_s=None,
        solve_s=None,
        answer_s=TimeSummary(median=0.02, max=0.03),
    ),
    utilisation=UtilisationStatus(u=None, eq_nodes=0.6, work=0.0, static_work=None),
    keeper=KeeperStatus(
        wanted_nodes=4,
        pending=3,
        running=1,
        leaving=1,
        suspended=1,
        waits_for="Q: Not Running: Queue not started.",
        others=0,
        idle_nodes=None,
        planned_nodes=0,
        endings={"preempted": 2},
        trouble="",
        held_back="another job is taking nodes; it comes first",
    ),
    trouble="",
    remarks=["the scheduler does not answer"],
)


def test_that_decisions_have_to_wait_is_said_before_all(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = msgspec.structs.replace(STATUS, trouble="cannot write the journal /j: No space left on device")
    console().print(status_view(waiting), crop=False)
    assert "/j: No space left on device: decisions wait" in capsys.readouterr().out.splitlines()[2]


def test_all_of_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(status_view(STATUS, nodes=True), crop=False)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "pool polaris-1 on polaris, up for 100 s"
    assert lines[1] == (
        "pilot jobs: 1 run, 3 wait (Q: Not Running: Queue not started.), 1 leave, 1 of them suspended; "
        "ended: 2 preempted; another job is taking nodes; it comes first"
    )
    assert lines[2] == "nodes: 1; 1 train, 1 warm up, 1 leave, 1 set aside"
    assert "vit      failed   1 +1           3      1    40          -  0.2500" in lines
    assert "n1 (leaving, set aside)  vit      60 s" in lines
    assert {"vit: a remark", "the scheduler does not answer", "  it raised"} <= set(lines)


def test_a_large_old_pool_is_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [msgspec.structs.replace(STATUS.pool[0], node=f"n{n}", leaving=False) for n in range(5000)]
    ended = [
        msgspec.structs.replace(TRAINER, trainer=f"old{n}", phase=Phase.FINISHED, nodes=[], ended_s=float(n))
        for n in range(300)
    ]
    runs = msgspec.structs.replace(TRAINER, trainer="new", phase=Phase.RUNNING)
    console().print(status_view(msgspec.structs.replace(STATUS, pool=nodes, trainers=[*ended, runs])), crop=False)
    text = capsys.readouterr().out
    assert "and 290 that ended before these" in text
    assert "old299" in text and "old289" not in text and "new" in text
    assert "nodes: 5000; 1 train" in text and "n4999" not in text


def test_what_one_copies_is_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(status_view(STATUS), crop=False)
    assert "/a/long/path" * 20 in capsys.readouterr().out


def test_json_says_its_format_and_is_read_back_as_what_it_was() -> None:
    text = to_json(STATUS)
    assert next(iter(json.loads(text).items())) == ("format", JSON_FORMAT)
    assert json.loads(text)["trainers"][0]["measured_samples_per_s"] == {"1": 100.0, "10": 900.0}
    assert msgspec.json.decode(text, type=PoolStatus) == STATUS


def test_json_has_null_for_a_loss_that_diverged() -> None:
    text = to_json(msgspec.structs.replace(TRAINER, metrics={"loss": math.nan}))
    assert msgspec.json.decode(text, type=TrainerStatus).metrics == {"loss": None}
