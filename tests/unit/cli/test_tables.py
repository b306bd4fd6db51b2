"""Tables on a terminal of 80 columns: one line for each row, however long its names and paths are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import click
import msgspec
import pytest

from pilot.cli.doctor import _print
from pilot.cli.main import run
from pilot.cli.rows import folded, history_lines, history_view, trainer_rows
from pilot.cli.show import console, node_lines, print_table, show, status_lines
from pilot.cli.study_output import show_trials
from pilot.cli.views import PoolRow, _print_pools
from pilot.core.trainer.trainer import Phase
from pilot.doctor.finding import ok
from pilot.protocol.node_names import node_of
from pilot.protocol.pool_status import HeldNode, NodeStatus, TrainerHistory, TrainerStatus
from pilot.protocol.requests import StudyStatus, TrialList, TrialStatus
from tests.unit.cli.statuses import STATUS, TRAINER, filled

WIDTH = 80
HOST = "university-cluster-partition-with-gpus-node-0123.cluster.university.example"
NODE = node_of(HOST, "pilot-123456-fu6bbncn3cnmni6l")
JOB = "1234567.polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov"
NAME = "an-experiment-with-all-its-settings-in-its-name-lr0.001-bs4096-4"
PATH = "/lus/grand/projects/a-project/users/somebody/with/a/long/name/.local/state/pilot/polaris"


def trainers() -> None:
    names = (NAME, NAME.replace("-4", "-5"), "vit")
    rows = [trainer(name, samples_per_s=123456.0, left_s=4e6, step=12345678, steps=99999999) for name in names]
    show(console(), [line for line in trainer_rows(rows, WIDTH) if not line.plain.startswith(" ")])


def trainer(name: str = NAME, **given: object) -> TrainerStatus:
    return msgspec.structs.replace(TRAINER, trainer=name, reason="", phase=Phase.RUNNING, metrics={}, **given)


def nodes() -> None:
    one = filled(NodeStatus, node=NODE, job=JOB, trainer=NAME, leaving=True, set_aside=True)
    show(console(), node_lines([one, msgspec.structs.replace(one, trainer=None)], 1e6, WIDTH))


def history() -> None:
    held = [HeldNode(node=NODE, job=JOB, from_s=0.0, until_s=until_s) for until_s in (None, 1e5)]
    answer = TrainerHistory(0.0, 9.0, 1.0, trainer(check_text=""), held)
    show(console(), history_view(answer, WIDTH)[-3:])


def all_trainers() -> None:
    rows = [trainer(name, used_node_hours=0.000123456, ended_s=1e6) for name in (NAME, NAME.replace("-4", "-5"))]
    lines = history_lines(msgspec.structs.replace(STATUS, trainers=rows), WIDTH)
    assert all(re.search(r" [A-Z]\w\w \d\d \d\d:\d\d:\d\d ", line.plain) for line in (lines[1], lines[3])), (
        "whole times"
    )
    show(console(), [line for line in lines if not line.plain.startswith(" ")])


def pools() -> None:
    up = PoolRow(run_dir=PATH, state="up", coordinator="polaris-63f031", site="polaris", nodes=512, trainers=64)
    _print_pools([up, PoolRow(run_dir=PATH, state="no answer")])


def parted_pools() -> None:
    up = PoolRow(run_dir=PATH, state="draining", coordinator="p", site="delta", only_nodes="nid[0001-0512],nid0999")
    _print_pools([up, up])


def trials() -> None:
    given = {"learning_rate": 0.000123456, "optimizer_name": "adam-with-decoupled-weight-decay", "width": 4096}
    trial = filled(TrialStatus, trainer=f"{NAME}-12", parameters=given, values=[0.1, 0.2], reason="it raised " * 20)
    show_trials(TrialList(study=filled(StudyStatus, metric="accuracy", rungs=[1, 3, 9]), trials=[trial, trial]))


def many_columns() -> None:
    print_table([f"column{n}" for n in range(20)], [["a cell"] * 20] * 2)


@pytest.mark.parametrize("table", [trainers, all_trainers, nodes, history, pools, parted_pools, trials, many_columns])
def test_a_row_is_one_line_of_at_most_80_columns(
    table: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    table()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == (4 if table is trainers else 3)
    assert max(map(len, lines)) <= WIDTH, lines
    assert all("…" in line for line in lines[1:3])


def test_the_list_of_sites_has_a_line_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert run(["sites"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in (head, *rows)) <= WIDTH
    begin = head.index("description")
    assert all(row[begin - 1] == " " and row[begin] != " " for row in rows)
    assert any("gpuA100x4-preempt" in row for row in rows), "what is a sentence is cut first"


def test_a_status_with_long_names_is_no_wider_than_the_terminal() -> None:
    texts = [f"{NODE} is set aside for {NAME} for 4m00s: OSError", "its gradient differs"]
    long = msgspec.structs.replace(
        STATUS, coordinator="polaris-63f031", trainers=[trainer(warnings=texts)] * 2, warnings=texts
    )
    lines = [line.plain for line in status_lines(long, WIDTH)]
    assert max(map(len, lines)) <= WIDTH
    assert HOST not in "".join(lines) and f"    {NAME}" in lines


def test_a_number_is_not_parted_from_its_unit() -> None:
    text = "the first one took 47 s of 60 s, 3 min more than 12.5 GB need; nodes 4 seen"
    for width in range(12, 40):
        lines = folded(text, width)
        assert " ".join(lines) == text
        assert not [line for line in lines[1:] if line.split()[0] in ("s", "s,", "min", "GB")]


def test_a_finding_of_the_doctor_keeps_its_column_and_its_colour(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    _print(ok("pilots", "2 started within 12.3 s " * 8))
    first, *more = capsys.readouterr().out.splitlines()
    assert first.startswith("ok    pilots          2 started") and len(more) > 1
    assert all(line.startswith(" " * 22) and len(line) <= WIDTH for line in more)
    assert click.unstyle(first) == first, "no colours where it is not a terminal"
