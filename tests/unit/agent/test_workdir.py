"""An agent's private directory, and the clean-up of directories whose agents are gone."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from pilot.agent import workdir as workdirs
from pilot.core.errors import UserError
from pilot.host import proc


def test_a_home_is_private_and_short_enough_for_sockets(tmp_path: Path) -> None:
    home = workdirs.create(tmp_path)
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
    longest = workdirs._LONGEST_BASE + len(f"/pilot-4294967295-{'x' * 12}") + len("/t/pymp-12345678/listener-12345678")
    assert longest <= 107
    os.close(home.lock)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_folder_without_locks_is_one_clear_line_and_stays_empty(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    left = workdirs.create(tmp_path)
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match=rf"^no folder for temporary files: {tmp_path}: {os.strerror(number)}; set scr"):
        workdirs.create(tmp_path)
    assert workdirs.sweep(tmp_path) == []
    assert list(tmp_path.iterdir()) == [left.path]


def test_a_node_whose_temporary_directories_are_full_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def gettempdir() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", gettempdir)
    with pytest.raises(UserError, match=r"^no folder for temporary files: No usable temporary directory"):
        workdirs.sweep()


def test_a_sweep_leaves_alone_what_is_locked_or_strange(tmp_path: Path) -> None:
    home = workdirs.create(tmp_path)
    prefix = f"pilot-{os.getuid()}-"
    (tmp_path / f"{prefix}open").mkdir(mode=0o755)
    (tmp_path / f"{prefix}file").touch(mode=0o600)
    (tmp_path / f"{prefix}without-lock").mkdir(mode=0o700)
    (tmp_path / f"{prefix}link").symlink_to(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert workdirs.sweep(tmp_path) == []
    assert sorted(tmp_path.iterdir()) == before
    os.close(home.lock)
    assert workdirs.sweep(tmp_path) == [home.path.name]
    assert not home.path.exists()


def test_what_a_guardian_left_that_was_killed_while_it_erased_is_swept(tmp_path: Path) -> None:
    home = workdirs.create(tmp_path)
    os.close(home.lock)
    (home.path / "lock").unlink()
    (home.temporary / "cache").mkdir()
    assert workdirs.sweep(tmp_path) == [home.path.name]
    assert list(tmp_path.iterdir()) == []


def test_erasing_kills_by_the_mark_and_removes_what_was_recorded(tmp_path: Path) -> None:
    home = workdirs.create(tmp_path)
    mark, _, name = home.mark.partition("=")
    ours = subprocess.Popen(["sleep", "600"], env={mark: name}, start_new_session=True)
    other = subprocess.Popen(["sleep", "600"], env={mark: f"{name}x"})
    segments = [proc.SHARED_MEMORY / f"pilot_test_{os.getpid()}_{i}" for i in range(2)]
    for segment in segments:
        segment.touch()
    home.record_segments([segments[1].name])
    home.record_segments([segments[0].name, "gone-already"])
    os.close(home.lock)
    assert workdirs.erase(home.path) == []
    assert ours.wait(10) == -9
    assert other.poll() is None
    assert [segment.exists() for segment in segments] == [False, True]
    other.kill()
    other.wait()
    segments[1].unlink()
