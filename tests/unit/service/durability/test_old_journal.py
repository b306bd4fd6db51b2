"""A journal of another format is refused in one line, by every command that needs it, and stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilot.cli.main import run
from pilot.rundir.entries import sealed
from pilot.rundir.journal import FORMAT

HEADER = {"version": "0.0.9", "coordinator": "p", "started_unix_s": 1.7e9, "settings": {}, "site": {"name": "local"}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The run directory of a pool of an earlier version that was shut down."""
    (tmp_path / "journal.jsonl").write_bytes(sealed({"journal": FORMAT - 1, **HEADER}))
    return tmp_path


def refusal(printed: str) -> str:
    (line,) = printed.splitlines()
    assert f"journal.jsonl:1: not a journal of format {FORMAT} (its first line says {FORMAT - 1})" in line
    return line


@pytest.mark.parametrize("command", ["events", "status", "ls", "report"])
def test_commands_about_a_past_pool(root: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run([command, "--run-dir", str(root)]) == 2
    refusal(capsys.readouterr().err)


def test_the_coordinator_says_how_a_new_pool_starts(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = (root / "journal.jsonl").read_bytes()
    assert run(["up", "--site", "local", "--run-dir", str(root)]) == 2
    line = refusal(capfd.readouterr().err)
    assert line.endswith("; pilot up --fresh starts a new pool and keeps this one aside")
    assert (root / "journal.jsonl").read_bytes() == before
