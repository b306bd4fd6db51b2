"""Files that are complete or absent, on any file system."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pilot.core.errors import UserError
from pilot.io.files import publish, sync_directory, write_output


def test_a_published_file_is_whole_private_and_alone(tmp_path: Path) -> None:
    publish(tmp_path / "name", b"old")
    publish(tmp_path / "name", b"new")
    assert (tmp_path / "name").read_bytes() == b"new"
    assert (tmp_path / "name").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["name"]


def test_a_file_system_that_cannot_sync_a_directory_is_no_error() -> None:
    descriptor = os.open("/proc", os.O_RDONLY)
    try:
        with pytest.raises(OSError) as refused:  # so /proc is one
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    assert refused.value.errno == errno.EINVAL
    sync_directory(Path("/proc"))


@pytest.mark.parametrize(("number", "tolerated"), [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, False)])
def test_only_a_refusal_to_sync_is_tolerated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, tolerated: bool
) -> None:
    def fsync(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    before = set(Path("/proc/self/fd").iterdir())
    if tolerated:
        sync_directory(tmp_path)
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            sync_directory(tmp_path)
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_an_output_is_whole_and_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    link.symlink_to(page)
    mask = os.umask(0o022)
    try:
        write_output(link, b"new")
    finally:
        os.umask(mask)
    assert (link.is_symlink(), page.read_bytes(), page.stat().st_mode & 0o777) == (True, b"new", 0o644)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_output(pipe, b"new")
        assert (os.read(reader, 10), pipe.is_fifo()) == (b"new", True)
    finally:
        os.close(reader)
    with pytest.raises(UserError, match=r"cannot write .*missing/page\.html: No such file or directory"):
        write_output(tmp_path / "missing" / "page.html", b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.html", "page.html", "pipe"]
