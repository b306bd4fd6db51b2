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
        ({"--rungs": "3,3"}, "'3,3': must be increasing whole numbers"),
        ({"--rungs": "0,3"}, "must be increasing whole numbers"),
        ({"--rungs": "a"}, "must be increasing whole numbers"),
        ({"--metric": "accuracy"}, "give NAME:max or NAME:min"),
        ({"--trials": "0"}, "--trials"),
        ({"--sampler": "grid"}, "cannot count the values of lr"),
        ({"--space": "nowhere.py"}, "--space FILE"),
    ],
)
def test_bad_input(changed: dict[str, str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    options = [part for name, value in (GOOD | changed).items() if value for part in (name, value)]
    assert run(["study", "run", *options, "--run-dir", str(tmp_path), str(script)]) == 2
    told = capsys.readouterr().err
    assert why in told
    assert told.count("\n") == 1


def test_a_parameter_that_is_named_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    options = ["--name", "s", "--trials", "1", "--metric", "a:min", "--param", "x=int:1:2", "--param", "x=int:1:3"]
    assert run(["study", "run", *options, str(script)]) == 2
    assert "--param x is given twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "why"),
    [("def space(trial): pass", "the search space is empty"), ("def space(trial): 1 / 0", "ZeroDivisionError")],
)
def test_a_space_that_is_none(text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in (("train.py", ""), ("space.py", text)):
        (tmp_path / name).write_text(content)
    options = ["--name", "s", "--trials", "1", "--metric", "a:min", "--space", str(tmp_path / "space.py")]
    assert run(["study", "run", *options, str(tmp_path / "train.py")]) == 2
    assert why in capsys.readouterr().err
