"""A script's output when its log cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilot.agent.script_log import Log
from pilot.io.log_marks import Marker


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
