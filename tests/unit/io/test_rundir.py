"""One coordinator per run directory, private to its user."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pilot.core.errors import UserError
from pilot.io.rundir import Lock, RunDir, default_path, is_abandoned, owner

HOLD = """
import sys
from pathlib import Path
from pilot.io.rundir import Lock, RunDir
lock = Lock(RunDir(Path(sys.argv[1])))
print("held", flush=True)
input()
"""


def test_it_is_private(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path / "state" / "pilot")
    rundir.create()
    assert rundir.root.stat().st_mode & 0o777 == 0o700
    rundir.root.chmod(0o755)
    with pytest.raises(UserError, match="chmod 700"):
        rundir.create()


def test_a_place_where_none_can_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot make the run directory"):
        RunDir(tmp_path / "file" / "run").create()


def test_a_second_coordinator_is_refused_and_told_the_first_ones_pid(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path / "run")
    rundir.create()
    lock = Lock(rundir)
    assert owner(rundir) == os.getpid()
    with pytest.raises(UserError, match=f"process {os.getpid()} on "):
        Lock(rundir)
    lock.release()
    assert owner(rundir) is None
    Lock(rundir).release()


def test_an_owner_that_has_not_said_who_it_is_yet_is_none(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path / "run")
    rundir.create()
    lock = Lock(rundir)
    rundir.lock.write_bytes(b"")
    assert owner(rundir) is None
    lock.release()


def test_who_asks_for_the_owner_is_not_in_the_way_of_one(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path / "run")
    rundir.create()
    asking, done = threading.Event(), threading.Event()

    def ask() -> None:
        while not done.is_set():
            owner(rundir)
            asking.set()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        asking.wait(10)
        for _ in range(200):
            Lock(rundir).release()
    finally:
        done.set()
        thread.join()


def test_a_killed_owner_frees_it(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path / "run")
    rundir.create()
    command = [sys.executable, "-c", HOLD, str(rundir.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert owner(rundir) == process.pid
        rundir.connection.touch()
        assert not is_abandoned(rundir)
        process.kill()
        process.wait(10)
    assert is_abandoned(rundir)
    rundir.connection.unlink()
    assert not is_abandoned(rundir)
    Lock(rundir).release()


def test_an_earlier_pools_journal_is_set_aside(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path / "run")
    rundir.create()
    assert rundir.set_aside() is None
    rundir.journal.touch()
    (rundir.trainers / "t1").mkdir()
    aside = rundir.set_aside()
    assert aside is not None
    assert sorted(p.name for p in aside.iterdir()) == ["journal.jsonl", "trainers"]
    assert list(rundir.trainers.iterdir()) == []


def test_default_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("PILOT_RUN_DIR", raising=False)
    assert default_path("local") == tmp_path / "pilot" / "local"
    monkeypatch.setenv("PILOT_RUN_DIR", str(tmp_path / "mine"))
    assert default_path("local") == tmp_path / "mine"
