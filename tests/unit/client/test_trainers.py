"""What a Python program may give to ``pilot.submit``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pilot.client.trainers import prepared, submit
from pilot.core.errors import UserError
from pilot.submission.seldom import SYNC, DiLoCo, parsed


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text("")
    return file


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_nodes", "4"),
        ("no_such", 1),
        ("check", "so"),
        ("seed", "abc"),
        ("seed", -1),
        ("seed", 2**63),
        ("checkpoints_kept", 0),
        ("env", "DATA"),
        ("sync", "diloco"),
        ("sync", 50),
    ],
)
def test_a_mistake_is_told_before_anything_is_sent(script: Path, option: str, value: object) -> None:
    given: dict[str, Any] = {"run_dir": script.parent, option: value}
    with pytest.raises(UserError, match=option):
        submit(script, **given)


def test_paths_may_be_given_as_paths(script: Path) -> None:
    _, submission, _ = prepared(script, [], run_dir=script.parent, python=Path(sys.executable))
    assert submission.launch.python == sys.executable


@pytest.mark.parametrize("sync", ["diloco:every=50,wire=int8", DiLoCo(50, wire="int8")])
def test_how_nodes_synchronise_is_a_variable_of_the_script(script: Path, sync: str | DiLoCo) -> None:
    _, submission, _ = prepared(script, [], run_dir=script.parent, sync=sync, env={SYNC: "localsgd:every=2", "A": "1"})
    assert parsed(submission.launch.environment[SYNC]) == DiLoCo(50, wire="int8")
    assert submission.launch.environment["A"] == "1"
    _, submission, _ = prepared(script, [], run_dir=script.parent)
    assert SYNC not in submission.launch.environment


def test_a_torchrun_script_sums_in_every_step(script: Path) -> None:
    with pytest.raises(UserError, match="--ddp: --from, --accept-changes and --sync need a script"):
        prepared(script, [], run_dir=script.parent, ddp=True, sync="diloco:every=50")
