"""What ``pilot up`` passes to the coordinator that it starts, and its messages."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from msgspec import structs

from pilot.cli import up
from pilot.cli.main import run
from tests.unit.cli.statuses import STATUS


def test_damage_is_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage = "entries 35 to 38 of the journal are missing: \x1b[2J"
    monkeypatch.setattr(up, "start", lambda *_, **__: structs.replace(STATUS, damage=[damage]))
    assert run(["up", "--site", "local", "--run-dir", str(tmp_path / "pool")]) == 0
    assert "warning: entries 35 to 38 of the journal are missing: \\u001b[2J\n" in capsys.readouterr().err


class Replaced(BaseException):
    """The process is the coordinator now."""


@pytest.mark.parametrize(
    ("given", "objective"),
    [
        ([], "scaling-efficiency"),
        (["--planner", "flotilla"], "throughput"),
        (["--planner", "flotilla", "--objective", "priority"], "priority"),
    ],
)
def test_each_planner_has_its_usual_objective(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: list[str], objective: str
) -> None:
    started: list[list[str]] = []

    def execv(_path: str, arguments: list[str]) -> None:
        started.append(arguments)
        raise Replaced

    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(Replaced):
        run(["up", "--site", "local", "--foreground", "--run-dir", str(tmp_path / "pool"), *given])
    (arguments,) = started
    assert json.loads(arguments[arguments.index("--settings") + 1])["objective"] == objective
