"""What a Python program may give to ``pilot.submit``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pilot.client.trainers import prepared, submit
from pilot.core.errors import UserError


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
    ],
)
def test_a_mistake_is_told_before_anything_is_sent(script: Path, option: str, value: object) -> None:
    given: dict[str, Any] = {"run_dir": script.parent, option: value}
    with pytest.raises(UserError, match=option):
        submit(script, **given)


def test_paths_may_be_given_as_paths(script: Path) -> None:
    _, submission, _ = prepared(script, [], run_dir=script.parent, python=Path(sys.executable))
    assert submission.launch.python == sys.executable
