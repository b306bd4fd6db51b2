"""``pilot status`` as people see it."""

from __future__ import annotations

import io
import json
import math

import msgspec
import pytest
from rich.console import Console

from pilot.cli.options import JSON_FORMAT, to_json
from pilot.cli.rows import history_lines, history_view, trainer_rows
from pilot.cli.show import node_lines, show, status_lines
from pilot.core.trainer.proof import ProofState
from pilot.core.trainer.trainer import Phase
from pilot.protocol.pool_status import PoolStatus, TrainerHistory, TrainerStatus
from tests.unit.cli.statuses import STATUS, TRAINER

RUNS = msgspec.structs.replace(
    TRAINER, phase=Phase.RUNNING, reason="", samples_per_s=5230.0, left_s=2100.0, warnings=[]
)


def lines(status: PoolStatus, width: int = 80) -> list[str]:
    """The output of ``pilot status`` at this many columns."""
    text = io.StringIO()
    show(Console(width=width, file=text), status_lines(status, width))
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_all_of_it_is_shown_in_80_columns_and_in_plain_words() -> None:
    warned = msgspec.structs.replace(TRAINER, warnings=["it has used 0.0045 of its budget of 0.005 node-hours"])
    shown = lines(msgspec.structs.replace(STATUS, trainers=[warned]))
    assert shown[0] == "pool polaris-1 on polaris, up 1m40s: 1 node (1 training, 1 starting, 1 leaving,"
    assert " ".join(shown[2:5]) == (
        "jobs: 1 running, 3 queued, 1 leaving; 1 suspended; in the queue for 3m20s (Q: Not Running: Queue not "
        "started.); ended: 2 preempted; waiting while another job takes nodes"
    )
    assert shown[5] == "used: 0.0167 node-hours"
    row = next(number for number, line in enumerate(shown) if line.startswith("vit  "))
    assert shown[row - 1].split() == ["trainer", "state", "nodes", "epochs", "steps", "samples/s", "elapsed", "left"]
    assert shown[row].split() == ["vit", "failed", "1", "1/3", "40", "-", "1m38s", "-"]
    assert shown[row + 1 :] == [
        "    it raised",
        "    it has used 0.0045 of its budget of 0.005 node-hours",
        "    loss 0.25, learning_rate 0.001, accuracy 0.9",
        "the scheduler does not answer",
    ], "what is, and not what was"
    assert all(len(line) <= 80 for line in shown)
    assert not [line for line in shown if "eq-nodes" in line or " U " in line]
    waiting = msgspec.structs.replace(STATUS, trouble="cannot write the journal /j: No space left on device")
    assert "/j: No space left on device: no decisions until" in lines(waiting, 200)[3]


def test_the_round_of_a_trainer_and_what_it_took_are_told_apart_from_its_metrics() -> None:
    in_rounds = {"round": 1200.0, "loss": 0.25, "exchange_s": 3.14159, "inner_step_s": 0.2041}
    trainer = msgspec.structs.replace(TRAINER, phase=Phase.RUNNING, metrics=in_rounds)
    shown = [line.plain for line in trainer_rows([trainer], 80)]
    assert shown[-2:] == ["    round 1,200: exchange 3.14 s, inner step 0.204 s", "    loss 0.25"]
    before_any = msgspec.structs.replace(trainer, metrics={"round": 0.0, "exchange_s": None, "inner_step_s": None})
    assert not any("exchange 0" in line.plain for line in trainer_rows([before_any], 80))


@pytest.mark.parametrize("width", [80, 160])
def test_a_trainer_s_row_shows_how_far_it_is_and_what_it_waits_for(width: int) -> None:
    queued = msgspec.structs.replace(
        RUNS,
        trainer="a-trainer-with-a-name-of-64-characters-that-nobody-would-shorten",
        phase=Phase.QUEUED,
        nodes=[],
        started_s=None,
        samples_per_s=None,
        left_s=None,
        metrics={},
        waits="waiting for 1 more node; in the queue for 3m20s, Slurm expects 02:10; " + "a reason " * 9,
    )
    shown = [str(line).rstrip() for line in trainer_rows([RUNS, queued], width)]
    assert shown[1].split() == ["vit", "running", "1", "1/3", "40", "5,230", "1m38s", "35m00s"]
    name, *cells = shown[3].split()
    assert (name == queued.trainer) == (width == 160) and cells == ["queued", "-", "-", "-", "-", "1m38s", "-"]
    waits = shown[4:] if name == queued.trainer else shown[5:]
    assert name == queued.trainer or (name.startswith("a-tra") and shown[4] == f"    {queued.trainer}")
    assert " ".join(line.strip() for line in waits) == queued.waits.strip()
    assert max(map(len, shown)) <= width


def test_history_shows_in_80_columns_why_a_trainer_ended() -> None:
    name, why = "a-name-as-people-give-it", "it raised " + "so " * 40
    old = msgspec.structs.replace(TRAINER, trainer=name, ended_s=90.0, reason=why)
    shown = [str(line) for line in history_lines(msgspec.structs.replace(STATUS, trainers=[old]), 80)]
    assert shown[1].split()[1] == "failed" and shown[2] == f"    {name}"
    assert " ".join(line.strip() for line in shown[3:]) == why.strip()
    assert max(map(len, shown)) <= 80


def test_steps_of_a_script_for_torchrun_are_not_called_samples() -> None:
    counts = {"epoch": 0, "epochs": None, "samples": 80, "samples_per_s": 30.0, "metrics": {}}
    ddp = msgspec.structs.replace(TRAINER, phase=Phase.RUNNING, nodes=["n1", "n2"], **counts)
    [_, row] = [line.plain for line in trainer_rows([ddp], 80)]
    assert row.split()[5:7] == ["15", "steps"]
    [_, row, *_] = map(str, history_lines(msgspec.structs.replace(STATUS, trainers=[ddp]), 80))
    assert row.split()[-2:] == ["-", "40"]


def test_a_large_old_pool_is_summed_up() -> None:
    nodes = [msgspec.structs.replace(STATUS.pool[0], node=f"n{n}", leaving=False) for n in range(5000)]
    ended = [
        msgspec.structs.replace(TRAINER, trainer=f"old{n}", phase=Phase.FINISHED, nodes=[], ended_s=float(n))
        for n in range(300)
    ]
    shown = lines(msgspec.structs.replace(STATUS, pool=nodes, trainers=[*ended, RUNS]))
    text = "\n".join(shown)
    assert "and 295 that ended earlier" in text
    assert "old299" in text and "old294" not in text and "vit" in text
    assert "5000 nodes (1 train" in shown[0] and "n4999" not in text


def test_a_trainer_is_one_line_where_there_are_many() -> None:
    running = [msgspec.structs.replace(TRAINER, trainer=f"t{n}", phase=Phase.RUNNING) for n in range(200)]
    shown = [str(line) for line in trainer_rows(running, 80)]
    assert len(shown) == 202
    assert "pilot top" in shown[-1]
    assert len(trainer_rows(running[:2], 80)) == 1 + 2 * 2


def test_a_list_that_lacks_ended_trainers_ends_with_a_note() -> None:
    for ended_kept, noted in ((1, True), (2, False)):
        shown = history_lines(msgspec.structs.replace(STATUS, ended_kept=ended_kept), 80)
        assert (str(shown[-1]) == "ended trainers before the last 1 are not listed; pilot report shows all") is noted


def test_json_has_its_format_and_is_read_back_unchanged() -> None:
    text = to_json(STATUS)
    assert next(iter(json.loads(text).items())) == ("format", JSON_FORMAT)
    shown = json.loads(text)["trainers"][0]
    assert shown["measured_samples_per_s"] == {"1": 100.0, "10": 900.0}
    seen = {"measured": False, "by_other": False, "age_s": None}
    assert shown["scaling"][1] == {"nodes": 2, "per_s": 195.0, "error": 0.04, **seen}
    assert msgspec.json.decode(text, type=PoolStatus) == STATUS


def test_json_has_null_for_a_loss_that_diverged() -> None:
    text = to_json(msgspec.structs.replace(TRAINER, metrics={"loss": math.nan}))
    assert msgspec.json.decode(text, type=TrainerStatus).metrics == {"loss": None}


def test_the_history_of_a_trainer_counts_in_words() -> None:
    once = msgspec.structs.replace(TRAINER, step=1, samples=1, lost_steps=1, started_s=1.0)
    history = TrainerHistory(0.0, 9.0, 1.0, once, [])
    text = "\n".join(line.plain for line in history_view(history, 200))
    assert ": 1 step, 1 sample\n" in text and "\n1 step lost\n" in text


SHOWN_CHECKS = {ProofState.RUNNING, ProofState.DIFFERS, ProofState.UNCHECKED}


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.FAILED])
@pytest.mark.parametrize("check", ProofState)
def test_a_row_mentions_a_check_that_runs_or_did_not_pass(check: ProofState, phase: Phase) -> None:
    trainer = msgspec.structs.replace(TRAINER, check=check, phase=phase, check_text="its text")
    shown = any("its text" in line.plain for line in trainer_rows([trainer], 120))
    assert shown == (check in SHOWN_CHECKS and phase is Phase.RUNNING)


def test_types_of_nodes_are_shown_only_where_they_differ() -> None:
    of = {"n1": "a100", "n2": "a100", "n3": "a40/slow"}
    pool = [msgspec.structs.replace(STATUS.pool[0], node=node, type=name) for node, name in of.items()]
    keepers = [msgspec.structs.replace(STATUS.keeper, type=name) for name in ("a100", "a40")]
    trains = msgspec.structs.replace(
        RUNS, nodes_by_type={"a100": 2, "a40/slow": 1}, shares={"n1": 24.25, "n2": 24.0, "n3": 12.0}
    )
    shown = lines(msgspec.structs.replace(STATUS, pool=pool, trainers=[trains], keepers=keepers), 200)
    assert shown[0].endswith(", by type: 2 a100, 1 a40/slow")
    assert [line.split(":")[0] for line in shown[1:3]] == ["a100 jobs", "a40 jobs"]
    assert "    on 2 a100, 1 a40/slow; shares of a step: 12 to 24.2 samples" in shown
    assert [line.plain.split()[1] for line in node_lines(pool, 1.0, 200)] == ["type", "a100", "a100", "a40/slow"]
    alike = msgspec.structs.replace(STATUS, pool=pool[:2])
    assert "by type" not in lines(alike, 200)[0]
    assert node_lines(alike.pool, 1.0, 200)[0].plain.split()[1] == "job"
