"""One coordinator per run directory, private to its user."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilot.core.errors import PilotError, UserError
from pilot.core.ids import TrainerUid
from pilot.rundir import heartbeat, trainer_folder
from pilot.rundir.rundir import Lock, RunDir, default_path, is_abandoned, known_pools, owner, owner_status, remember

HOLD = """
import sys
from pathlib import Path
from pilot.rundir.rundir import known_pools, remember
from pilot.rundir.rundir import Lock, RunDir
lock = Lock(RunDir(Path(sys.argv[1])))
print("held", flush=True)
input()
"""

ELSEWHERE = """
import socket, sys, time
from pathlib import Path
from pilot.rundir import heartbeat, rundir
socket.gethostname = lambda: "login2"
rundir._try_lock = lambda *_: True
lock = rundir.Lock(rundir.RunDir(Path(sys.argv[1])))
print("held", flush=True)
while True:
    time.sleep(0.05)
    lock.beat()
"""
"""An owner on another host, where flock only works within one host."""


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create()
    return made


def test_it_is_private(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path / "state" / "pilot")
    rundir.create()
    assert rundir.root.stat().st_mode & 0o777 == 0o700
    rundir.root.chmod(0o755)
    with pytest.raises(UserError, match="chmod 700"):
        rundir.create()


@pytest.mark.parametrize("name", ["pool", "a:b,c=d@e+f.g_h~i", "größe"])
def test_names_that_need_no_quotes_are_allowed(tmp_path: Path, name: str) -> None:
    RunDir(tmp_path / name).create()
    assert (tmp_path / name / "pilots").is_dir()


def test_a_place_where_none_can_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot use the run directory .*Not a directory; choose another one"):
        RunDir(tmp_path / "file" / "run").create()


def test_a_second_coordinator_is_refused_and_told_the_first_ones_pid(rundir: RunDir) -> None:
    lock = Lock(rundir)
    assert owner(rundir) == os.getpid()
    with pytest.raises(UserError, match=f"process {os.getpid()} on "):
        Lock(rundir)
    lock.release()
    assert owner(rundir) is None
    Lock(rundir).release()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_that_cannot_lock_is_one_clear_line(
    rundir: RunDir, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    rundir.lock.touch()
    monkeypatch.setattr(fcntl, "flock", flock)
    for act in (Lock, owner):
        with pytest.raises(UserError, match=f"cannot lock .*: {os.strerror(number)}; choose .* on another file system"):
            act(rundir)


def test_an_owner_that_has_not_said_who_it_is_yet_is_none(rundir: RunDir) -> None:
    lock = Lock(rundir)
    rundir.lock.write_bytes(b"")
    assert owner(rundir) is None
    lock.release()


def test_who_asks_for_the_owner_is_not_in_the_way_of_one(rundir: RunDir) -> None:
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


def test_a_killed_owner_frees_it(rundir: RunDir) -> None:
    command = [sys.executable, "-c", HOLD, str(rundir.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert owner(rundir) == process.pid
        rundir.connection.touch()
        assert not is_abandoned(rundir)
        assert owner_status(rundir) == f"its process {process.pid} is alive"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert f"its process {process.pid} is stopped, and kill -CONT" in owner_status(rundir)
        process.kill()
        process.wait(10)
    assert is_abandoned(rundir)
    assert owner_status(rundir) == "is it up?"
    rundir.connection.unlink()
    assert not is_abandoned(rundir)
    Lock(rundir).release()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.5)
    monkeypatch.setattr(heartbeat, "PATIENCE_S", 1.5)
    monkeypatch.setattr("pilot.rundir.rundir._try_lock", lambda *_: True)
    RunDir(tmp_path / "run").create()
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_an_owner_on_another_host_is_seen_where_locks_are_not(tmp_path: Path, elsewhere: subprocess.Popen[str]) -> None:
    with pytest.raises(UserError, match=f"process {elsewhere.pid} on login2"):
        Lock(RunDir(tmp_path / "run"))
    elsewhere.kill()
    elsewhere.wait(10)
    lock = Lock(RunDir(tmp_path / "run"))
    lock.beat()
    lock.leave()
    lock.release()
    left = heartbeat.read(RunDir(tmp_path / "run").lock)
    assert left is not None
    assert left.left, "who comes next need not wait"


def test_an_owner_that_has_left_is_the_owner_until_its_process_ends(rundir: RunDir) -> None:
    lock = Lock(rundir)
    lock.leave()
    assert owner(rundir) == os.getpid(), "pilot down waits for that"
    lock.release()
    assert owner(rundir) is None


def test_an_owner_that_was_stopped_and_replaced_does_nothing_more(
    tmp_path: Path, elsewhere: subprocess.Popen[str]
) -> None:
    elsewhere.send_signal(signal.SIGSTOP)
    lock = Lock(RunDir(tmp_path / "run"))
    elsewhere.send_signal(signal.SIGCONT)
    _, said = elsewhere.communicate(timeout=30)
    assert elsewhere.returncode == 1
    assert f"taken over by process {os.getpid()} on" in said
    lock.beat()
    lock.release()


def test_an_owner_whose_run_directory_was_moved_has_lost_it(rundir: RunDir, tmp_path: Path) -> None:
    lock = Lock(rundir)
    rundir.root.rename(tmp_path / "elsewhere")
    lock.beat()  # a shared file system may take a moment to show it
    (tmp_path / "elsewhere").rename(rundir.root)
    lock.beat()
    shutil.rmtree(rundir.root)
    lock.beat()
    with pytest.raises(PilotError, match="was removed or moved while its pool was up"):
        lock.beat()
    lock.release()


def test_an_earlier_pools_journal_is_set_aside(rundir: RunDir) -> None:
    assert rundir.set_aside() is None
    rundir.journal.touch()
    (rundir.trainers / "t2-01234567").mkdir()
    trainer_folder.mark(rundir.trainers / "t2-01234567", TrainerUid("0123456789abcdef" * 2))
    aside = rundir.set_aside()
    assert aside is not None
    assert sorted(p.name for p in aside.iterdir()) == ["journal.jsonl"]
    assert [p.name for p in rundir.trainers.iterdir()] == ["t2-01234567"]


def test_default_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("PILOT_RUN_DIR", raising=False)
    assert default_path("local") == tmp_path / "pilot" / "local"
    monkeypatch.setenv("PILOT_RUN_DIR", str(tmp_path / "mine"))
    assert default_path("local") == tmp_path / "mine"


def test_pools_elsewhere_are_remembered_until_they_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert known_pools() == []
    roots = [tmp_path / "state" / "pilot" / "local", tmp_path / "a", tmp_path / "b"]
    for root in roots:
        root.mkdir(parents=True)
        (root / "journal.jsonl").touch()
        remember(root)
    (tmp_path / "state" / "pilot" / ".pools" / "note").touch()
    assert known_pools() == sorted(roots)
    (tmp_path / "a" / "journal.jsonl").unlink()
    assert known_pools() == sorted([roots[0], roots[2]])
    assert len(list((tmp_path / "state" / "pilot" / ".pools").iterdir())) == 2
