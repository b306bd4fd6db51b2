"""Files that the user named for our output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilot.core.errors import UserError
from pilot.host.output_files import write_output


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
