"""Typos and hostile places that were once answered with a traceback, a hang, or a bug report."""

from __future__ import annotations

import os
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
def script(tmp_path: Path) -> Path:
    (path := tmp_path / "train.py").write_text("print(1)\n")
    return path


def loop(path: Path) -> Path:
    path.symlink_to(path)
    return path


@pytest.mark.parametrize("command", ASKING)
def test_a_run_directory_that_leads_to_itself(refused: Refused, tmp_path: Path, script: Path, command: str) -> None:
    name, *rest = command.format(script=script).split()
    refused(name, "--run-dir", loop(tmp_path / "loop"), *rest)


@pytest.mark.parametrize("command", ASKING)
def test_a_run_directory_that_one_may_not_look_into(tmp_path: Path, script: Path, command: str) -> None:
    (tmp_path / "locked").mkdir(mode=0)
    name, *rest = command.format(script=script).split()
    status, said = as_an_ordinary_user([name, "--run-dir", str(tmp_path / "locked"), *rest])
    assert (status, said.count("\n"), said[:7]) == (2, 1, "pilot: "), said


@pytest.mark.parametrize("entry", ["coordinator.lock", "connection.json", "coordinator.log"])
@pytest.mark.parametrize("command", ["ls", "down", "logs t"])
def test_a_run_directory_with_fifos_in_it(refused: Refused, tmp_path: Path, command: str, entry: str) -> None:
    os.mkfifo(tmp_path / entry)
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
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


@pytest.mark.parametrize(
    "options",
    [
        ["--rescale-up-s", "nan"],
        ["--rescale-up-s", "inf"],
        ["--rescale-down-s", "-1"],
        ["--priority", "nan"],
        ["--priority", "0"],
        ["--min-nodes", "1e20"],
        ["--min-nodes", "99999999999999999999"],
        ["--max-nodes", "99999999999999999999"],
        ["--max-nodes", "0"],
        ["--python", "nopython"],
        ["--python", "/"],
    ],
)
def test_numbers_of_a_trainer_that_are_none(refused: Refused, tmp_path: Path, script: Path, options: list[str]) -> None:
    refused("submit", "--run-dir", tmp_path, *options, script)


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "x"])
def test_a_wall_time_that_never_ends(refused: Refused, tmp_path: Path, value: str) -> None:
    assert "walltime" in refused("agent", "--connection", tmp_path / "c.json", f"--walltime-end={value}")


@pytest.mark.parametrize("options", [["--pilots", "1e20"], ["--pilots", "9" * 30], ["--objective", "json:loads"]])
def test_a_pool_that_cannot_be(refused: Refused, tmp_path: Path, options: list[str]) -> None:
    refused("up", "--run-dir", tmp_path / "run", *options)


@pytest.mark.parametrize("command", [["show"], ["ls"], ["export"]])
@pytest.mark.parametrize("damage", ["structure", "cut", "fifo", "folder"])
def test_a_damaged_checkpoint(tmp_path: Path, refused: Refused, command: list[str], damage: str) -> None:
    whole = store.write(tmp_path, 1, 1, {"w": 1.0}, kept=1).path
    path = tmp_path / "copy.h5"
    match damage:
        case "structure":
            path.write_bytes(crafted(whole.read_bytes(), lambda _: []))
        case "cut":
            path.write_bytes(whole.read_bytes()[:1000])
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    output = [tmp_path / "out.pt"] if command == ["export"] else []
    if command == ["ls"] and damage != "folder":
        assert run(["checkpoint", "ls", str(path)]) == 2
    else:
        refused("checkpoint", *command, path, *output)


@pytest.fixture
def replay(tmp_path: Path) -> list[str]:
    (tmp_path / "events").write_text(EVENTS)
    (tmp_path / "trainers").write_text(TRAINERS)
    (tmp_path / "curves").write_bytes(CURVES)
    words = ["replay", "--planner", "dp", "--trainers", "trainers", "--curves", "curves", "events"]
    return [str(tmp_path / word) if (tmp_path / word).exists() else word for word in words]


@pytest.mark.parametrize(
    "options",
    [
        ["--objective", "json:loads"],
        ["--max-parallel-trainers", "0"],
        ["--max-parallel-trainers", "9" * 30],
        ["--t-fwd-s", "0"],
        ["--hours", "nan"],
    ],
)
def test_a_replay_that_cannot_be(refused: Refused, replay: list[str], options: list[str]) -> None:
    refused(*replay, *options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--eta-noise", "1.1"], "not in the range 0<=x<=1"),
        (["--eta-noise", "nan"], "not a finite number"),
        (["--known-ends", "2"], "not in the range 0<=x<=1"),
        (["--known-ends", "-1"], "not in the range 0<=x<=1"),
        (["--known-ends", "x"], "not a valid number"),
        (["--known-ends", "0,0.5"], "--known-ends needs EVENTS"),
        (["--only-nodes", "n*"], "--only-nodes needs EVENTS"),
        (["--fail-share", "0.6", "--cancel-share", "0.5"], "more than 1"),
        (["--scale-up-delay-s", "-1"], "not in the range 0<=x"),
        (["--decide-every-s", "0"], "not in the range 0<x"),
        (["--sizes", "4,2"], "must be increasing"),
        (["--sizes", ""], "whole numbers"),
        (["--seed", "x"], "whole number"),
        (["--nodes", "0"], "not in the range 1<=x"),
        (["--gpus-per-node", "3"], "4 GPUs cannot be divided into nodes of 3"),
        (["--times", "/nowhere/times.csv"], "cannot write"),
    ],
)
def test_a_still_pool_that_cannot_be(refused: Refused, replay: list[str], options: list[str], said: str) -> None:
    *rest, _ = replay
    assert said in refused(*rest, "--nodes", "4", "--hours", "1", *options)


def test_trainers_that_hang_need_an_end_of_the_replay(refused: Refused, replay: list[str]) -> None:
    *rest, events = replay
    assert "say how long" in refused(*rest, "--nodes", "4", "--hang-share", "0.1")
    assert "not both" in refused(*rest, events, "--nodes", "4")
    assert "missing: EVENTS (or --nodes)" in refused(*rest)


@pytest.mark.parametrize(
    "options",
    [
        ["--nodes", "1e20"],
        ["--nodes", "9" * 20],
        ["--hours", "1e-300"],
        ["--hours", "1e300"],
        ["--block-hours", "1e-300"],
    ],
)
def test_a_synthetic_trace_that_cannot_be(refused: Refused, tmp_path: Path, options: list[str]) -> None:
    refused("trace", "synth", "--published", "summit", *options, tmp_path / "out.csv")


@pytest.mark.parametrize("name", ["../../x", "", ".", "a/b"])
def test_a_trainer_that_is_a_path_has_no_logs(refused: Refused, tmp_path: Path, name: str) -> None:
    refused("logs", "--run-dir", tmp_path, "--", name)


def test_a_bug_is_one_line_even_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(**_: object) -> None:
        raise ZeroDivisionError("oops\nand more")

    monkeypatch.setenv("XDG_STATE_HOME", str(loop(tmp_path / "loop")))
    monkeypatch.setattr(cli_main.cli, "main", broken)
    assert run([]) == 1
    assert capsys.readouterr().err.startswith("pilot: internal error; ")
