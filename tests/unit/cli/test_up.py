"""What ``pilot up`` passes to the coordinator that it starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilot.cli.main import run


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
    assert arguments[arguments.index("--objective") + 1] == objective
