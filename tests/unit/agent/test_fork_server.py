"""The log and the seed that a fork server gives to a script."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from pilot.agent import fork_server
from pilot.agent.fork_server import Log, seed_of
from pilot.client.launching import launch
from pilot.rundir import log_marks
from pilot.rundir.log_marks import Marker


def log_to(descriptor: int, folder: Path) -> Log:
    return Log(descriptor, Marker(descriptor, folder / "node.log"))


def test_a_disk_that_is_full_or_fails_is_no_reason_to_lose_a_trainer(tmp_path: Path) -> None:
    controller, terminal = os.openpty()
    os.close(controller)  # writing to the terminal now gives EIO
    for descriptor in (os.open("/dev/full", os.O_WRONLY), terminal):
        assert log_to(descriptor, tmp_path).write(b"a line\n") == 7
        os.close(descriptor)


def test_a_script_that_closed_its_output_hears_of_it(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "node.log", os.O_WRONLY | os.O_CREAT)
    log = log_to(descriptor, tmp_path)
    os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        log.write(b"a line\n")


def test_a_log_is_rotated_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_marks, "LOG_BYTES", 10_000)
    monkeypatch.setattr(fork_server, "CHECK_EVERY_BYTES", 1000)
    path = tmp_path / "node.log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    log = log_to(descriptor, tmp_path)
    for number in range(10_000):
        log.write(f"{number:09}\n".encode())
        assert path.stat().st_size <= 11_000
    os.close(descriptor)
    kept = (tmp_path / "node.log.1").read_text() + path.read_text()
    numbers = [int(line) for line in kept.splitlines()]
    assert numbers == list(range(numbers[0], 10_000)), "nothing of what was printed last is lost"
    assert len(numbers) > 1000
    for place in (path, tmp_path / "node.log.1"):
        found, _ = log_marks.marks(place)
        assert all(mark.offset <= place.stat().st_size for mark in found)


def test_of_a_log_that_other_programs_filled_the_end_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_marks, "LOG_BYTES", 100)
    monkeypatch.setattr(log_marks, "MOST_BYTES", 200)
    path = tmp_path / "node.log"
    path.write_text("".join(f"{number:09}\n" for number in range(100)))
    umask = os.umask(0o022)  # the script's
    log_marks.rotate_if_full(path)
    os.umask(umask)
    assert (tmp_path / "node.log.1").stat().st_mode & 0o777 == 0o600
    said, *lines = (tmp_path / "node.log.1").read_text().splitlines()
    assert said == "[900 bytes before this were dropped: too much was printed at once]"
    assert [int(line) for line in lines] == list(range(90, 100))
    assert path.read_text() == ""


def test_two_do_not_rotate_a_log_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_marks, "LOG_BYTES", 1)
    path = tmp_path / "node.log"
    path.write_text("two\n")
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        log_marks.rotate_if_full(path)
        assert path.read_text() == "two\n"
    log_marks.rotate_if_full(path)
    assert path.read_text() == ""


def test_the_seed_is_the_trainer_s_own_unless_it_was_given(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    ours = {"PILOT_TRAINER": "t1"}
    given = launch(script, [], "python", (), 5).environment
    assert seed_of(given | ours) == 5
    assert launch(script, [], "python", ()).environment == {}
    assert seed_of(ours) == seed_of(ours) != seed_of({"PILOT_TRAINER": "t2"})
