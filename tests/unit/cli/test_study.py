"""What ``pilot study`` refuses before anything is sent: one line each, exit status 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilot.cli.main import run

GOOD = {"--name": "s", "--param": "lr=log:1e-4:1", "--trials": "4", "--metric": "accuracy:max", "--rungs": "1,3"}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"--param": ""}, "give the search space"),
        ({"--param": "lr=log:0:1"}, "--param lr: 'log:0:1': LOW must not exceed HIGH"),
        ({"--param": "lr=uniform:0:1"}, "is not a range; give log:LOW:HIGH"),
        ({"--param": "=int:1:2"}, "not a valid parameter name"),
        ({"--param": "x=int:1:2 --param x=int:1:3"}, "--param x is given twice"),
        ({"--rungs": "3,3"}, "'3,3': must be increasing whole numbers"),
        ({"--rungs": "0,3"}, "must be increasing whole numbers"),
        ({"--rungs": "a"}, "must be increasing whole numbers"),
        ({"--metric": "accuracy"}, "give NAME:max or NAME:min"),
        ({"--trials": "0"}, "--trials"),
        ({"--sync": "diloco"}, "sync: give diloco:every=N"),
        ({"--between-nodes": "tcp"}, "'tcp' is not one of 'mpi', 'gloo', 'nccl'"),
        ({"--between-nodes": "gloo", "--sync": "localsgd:every=5"}, "with --sync, nodes exchange parameters over MPI"),
        ({"--sampler": "grid"}, "cannot count the values of lr"),
        ({"--space": "nowhere.py"}, "--space FILE"),
        ({"--param": "", "--space": "empty.py"}, "the search space is empty"),
        ({"--param": "", "--space": "broken.py"}, "ZeroDivisionError"),
    ],
)
def test_bad_input(
    changed: dict[str, str],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    spaces = {"empty.py": "def space(trial): pass", "broken.py": "def space(trial): 1 / 0"}
    for name, content in {"train.py": "", **spaces}.items():
        (tmp_path / name).write_text(content)
    options = [part for name, value in (GOOD | changed).items() if value for part in (name, *value.split())]
    assert run(["study", "run", *options, "--run-dir", str(tmp_path), "train.py"]) == 2
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1
