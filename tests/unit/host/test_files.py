"""Files that are complete or absent, on any file system."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pilot.host.files import publish, sync_directory


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
