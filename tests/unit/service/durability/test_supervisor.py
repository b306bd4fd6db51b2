"""When and how often a coordinator is restarted, and when not."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pilot.rundir.rundir import Ended, write_end
from pilot.service.durability import supervisor


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The run directory of a pool whose coordinator was killed."""
    (tmp_path / "connection.json").touch()
    return tmp_path


def supervised(root: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[[], int | None]) -> list[float]:
    """The pauses before each start when the watched process has ended."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr(supervisor, "run", lambda _: run())
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    supervisor.main(gone.pid, ["coordinator", "--run-dir", str(root)])
    return pauses


def test_one_that_always_crashes_is_started_ever_later_and_not_for_ever(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = supervised(root, monkeypatch, lambda: -9)
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert "restarted 10 times in a row" in (root / "coordinator.log").read_text()


def test_one_that_could_not_even_be_started_is_tried_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = iter([None, None, supervisor.REFUSED])
    assert supervised(root, monkeypatch, lambda: next(outcomes)) == [1, 2, 4]


def test_a_life_that_was_long_begins_a_new_row(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STEADY_S", -1.0)
    outcomes = iter([-9] * 30 + [supervisor.REFUSED])
    assert supervised(root, monkeypatch, lambda: next(outcomes)) == [1.0] * 31


@pytest.mark.parametrize(
    ("how", "starts"),
    [(Ended(), 0), (Ended(nodes_left=("n",)), 0), (Ended(failure="cannot write the journal: I/O error"), 1), (None, 1)],
)
def test_how_it_ended_decides(root: Path, monkeypatch: pytest.MonkeyPatch, how: Ended | None, starts: int) -> None:
    if how is not None:
        write_end(root / "ended.json", how)
    assert len(supervised(root, monkeypatch, lambda: supervisor.REFUSED)) == starts


def test_a_pool_that_has_drained_is_left_alone_also_where_the_disk_took_no_last_word(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "connection.json").unlink()
    assert supervised(root, monkeypatch, lambda: -9) == []


def test_it_waits_for_the_end_of_what_is_no_child_of_its() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.close()
        supervisor.watch(process.pid)
        assert process.wait(10) == 1


def coordinator(run_dir: Path, *options: str) -> int:
    """The exit status of a coordinator that cannot start."""
    command = [sys.executable, "-m", "pilot.service.daemon", "--run-dir", str(run_dir), "--site", "local", *options]
    return subprocess.run(command, stderr=subprocess.DEVNULL, timeout=60, check=False).returncode


def test_a_disk_that_fails_for_a_moment_ends_no_pool(tmp_path: Path) -> None:
    assert coordinator(tmp_path, "--go-on") == supervisor.REFUSED, "there is no pool"
    (tmp_path / "coordinator.lock").unlink()
    (tmp_path / "coordinator.lock").mkdir()  # it cannot be opened
    assert coordinator(tmp_path, "--go-on") == 1
    assert coordinator(tmp_path) == 2, "the user can mend it"
