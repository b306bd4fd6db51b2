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
        ("between_nodes", "tcp"),
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


@pytest.mark.parametrize("given", [{"sync": "diloco:every=50"}, {"between_nodes": "gloo"}])
def test_a_torchrun_script_sums_in_every_step_by_itself(script: Path, given: dict[str, Any]) -> None:
    only = "--ddp: --from, --accept-changes, --sync and --between-nodes need a script"
    with pytest.raises(UserError, match=only):
        prepared(script, [], run_dir=script.parent, ddp=True, **given)


@pytest.mark.parametrize("between", [None, "mpi", "gloo", "nccl"])
def test_how_nodes_sum_is_part_of_the_launch(script: Path, between: Any) -> None:
    _, submission, _ = prepared(script, [], run_dir=script.parent, between_nodes=between)
    assert submission.launch.between_nodes == between


def test_rounds_are_exchanged_over_mpi(script: Path) -> None:
    given: dict[str, Any] = {"run_dir": script.parent, "sync": "localsgd:every=5"}
    with pytest.raises(UserError, match="--between-nodes gloo: with --sync, nodes exchange parameters over MPI"):
        prepared(script, [], between_nodes="gloo", **given)
    prepared(script, [], between_nodes="mpi", **given)
