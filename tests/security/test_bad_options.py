"""Typos and hostile places that were once answered with a traceback, a hang, or a bug report."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pilot.checkpoint import store
from pilot.cli import main as cli_main
from pilot.cli.main import run
from tests.security.fuzz.targets.checkpoints import crafted
from tests.security.fuzz.targets.cli import obey_modes
from tests.security.fuzz.targets.traces import CURVES, EVENTS, TRAINERS
from tests.security.special_files import put

Refused = Callable[..., str]
ASKING = ["ls", "status", "down", "logs t", "wait", "cancel t", "explain t", "submit -- {script}", "up --pilots 1"]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Run a command in this process; returns its one line on standard error."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("PILOT_RUN_DIR", raising=False)

    def call(*arguments: str | Path) -> str:
        status = run([str(a) for a in arguments])
        said = capsys.readouterr().err
        assert (status, said.count("\n"), said[:7]) == (2, 1, "pilot: "), said
        assert said[:-1].isprintable()
        return said

    return call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A script, and the files of a replay."""
    contents = {"train.py": "print(1)\n", "events": EVENTS, "trainers": TRAINERS, "curves": CURVES.decode()}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    return tmp_path


REPLAY = "replay --planner dp --trainers {folder}/trainers --curves {folder}/curves"
ALONE = f"{REPLAY} --nodes 4 --hours 1 {{options}}"
OPTIONS: dict[str, list[str]] = {
    "submit --run-dir {folder} {options} {folder}/train.py": [
        "--rescale-up-s nan", "--rescale-up-s inf", "--rescale-down-s -1", "--priority nan", "--priority 0",
        "--min-nodes 1e20", "--min-nodes 99999999999999999999", "--max-nodes 99999999999999999999", "--max-nodes 0",
        "--python nopython", "--python /",
    ],
    "up --run-dir {folder}/run {options}": ["--pilots 1e20", f"--pilots {'9' * 30}", "--objective json:loads"],
    "logs --run-dir {folder} -- {options}": ["../../x", "''", ".", "a/b"],
    "trace synth --published summit {options} {folder}/out.csv": [
        "--nodes 1e20", f"--nodes {'9' * 20}", "--hours 1e-300", "--hours 1e300", "--block-hours 1e-300",
    ],
    f"{REPLAY} {{options}} {{folder}}/events": [
        "--objective json:loads", "--max-parallel-trainers 0", "--max-parallel-trainers 5,many",
        f"--max-parallel-trainers {'9' * 30}", "--t-fwd-s 0", "--hours nan",
    ],
}  # fmt: skip
"""Command lines, and options for them that are refused."""

MESSAGES = [
    *(
        ("agent --connection {folder}/c.json --walltime-end={options}", v, "walltime")
        for v in ("nan", "inf", "-1", "x")
    ),
    (ALONE, "--eta-noise 1.1", "not in the range 0<=x<=1"),
    (ALONE, "--eta-noise nan", "not a finite number"),
    (ALONE, "--known-ends 2", "not in the range 0<=x<=1"),
    (ALONE, "--known-ends -1", "not in the range 0<=x<=1"),
    (ALONE, "--known-ends x", "not a valid number"),
    (ALONE, "--known-ends 0,0.5", "--known-ends needs EVENTS"),
    (ALONE, "--only-nodes 'n*'", "--only-nodes needs EVENTS"),
    (ALONE, "--fail-share 0.6 --cancel-share 0.5", "more than 1"),
    (ALONE, "--scale-up-delay-s -1", "not in the range 0<=x"),
    (ALONE, "--decide-every-s 0", "not in the range 0<x"),
    (ALONE, "--sizes 4,2", "must be increasing"),
    (ALONE, "--sizes ''", "whole numbers"),
    (ALONE, "--seed x", "whole number"),
    (ALONE, "--nodes 0", "not in the range 1<=x"),
    (ALONE, "--gpus-per-node 3", "4 GPUs cannot be divided into nodes of 3"),
    (ALONE, "--times /nowhere/times.csv", "cannot write"),
    (f"{REPLAY} {{options}}", "--nodes 4 --hang-share 0.1", "give the length of the replay"),
    (f"{REPLAY} {{folder}}/events {{options}}", "--nodes 4", "not both"),
    (f"{REPLAY} {{options}}", "", "missing: EVENTS (or --nodes)"),
]
CASES = [*((line, options, "") for line, several in OPTIONS.items() for options in several), *MESSAGES]


@pytest.mark.parametrize(("line", "options", "message"), CASES)
def test_a_mistake_in_an_option(refused: Refused, folder: Path, line: str, options: str, message: str) -> None:
    assert message in refused(*shlex.split(line.format(folder=folder, options=options)))


@pytest.mark.parametrize("command", ASKING)
@pytest.mark.parametrize("kind", ["loop", "locked"])
def test_a_run_directory_that_cannot_be_entered(folder: Path, command: str, kind: str) -> None:
    if kind == "loop":
        put(folder / kind, kind)
    else:
        (folder / kind).mkdir(mode=0)
    name, *rest = command.format(script=folder / "train.py").split()
    status, message = as_an_ordinary_user([name, "--run-dir", str(folder / kind), *rest])
    assert (status, message.count("\n"), message[:7]) == (2, 1, "pilot: "), message


@pytest.mark.parametrize("entry", ["coordinator.lock", "connection.json", "coordinator.log"])
@pytest.mark.parametrize("command", ["ls", "down", "logs t"])
def test_a_run_directory_with_fifos_in_it(refused: Refused, tmp_path: Path, command: str, entry: str) -> None:
    put(tmp_path / entry, "fifo")
    name, *rest = command.split()
    refused(name, "--run-dir", tmp_path, *rest)


def as_an_ordinary_user(words: list[str]) -> tuple[int, str]:
    """Run a command in a child that may not read what its mode forbids; returns exit status and standard error."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        sys.stderr = os.fdopen(write, "w", buffering=1)
        obey_modes()
        os._exit(run(words))
    os.close(write)
    with os.fdopen(read) as pipe:
        message = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), message


@pytest.mark.parametrize("command", [["show"], ["ls"], ["export"]])
@pytest.mark.parametrize("damage", ["structure", "cut", "fifo", "folder"])
def test_a_damaged_checkpoint(tmp_path: Path, refused: Refused, command: list[str], damage: str) -> None:
    whole = store.write(tmp_path, 1, 1, {"w": 1.0}, kept=1).path
    contents = {"structure": crafted(whole.read_bytes(), lambda _: []), "cut": whole.read_bytes()[:1000]}
    path = put(tmp_path / "copy.h5", contents.get(damage, damage))
    output = [tmp_path / "out.pt"] if command == ["export"] else []
    if command == ["ls"] and damage != "folder":
        assert run(["checkpoint", "ls", str(path)]) == 2
    else:
        refused("checkpoint", *command, path, *output)


def test_a_bug_is_one_line_even_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(**_: object) -> None:
        raise ZeroDivisionError("oops\nand more")

    monkeypatch.setenv("XDG_STATE_HOME", str(put(tmp_path / "loop", "loop")))
    monkeypatch.setattr(cli_main.cli, "main", broken)
    assert run([]) == 1
    assert capsys.readouterr().err.startswith("pilot: internal error; ")
