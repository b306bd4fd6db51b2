"""Why a pilot failed: the last line of its own, bounded and printable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilot.provisioning.last_words import LONGEST, cause, last_line


@pytest.mark.parametrize(
    ("written", "line"),
    [
        (b"", ""),
        (b"\n \n", ""),
        (b"first\nbash: python9: command not found\n\n", "bash: python9: command not found"),
        (
            b"execve(): env: No such file\nsrun: error: n1: task 0: Exited with exit code 127\n",
            "execve(): env: No such file",
        ),
        (
            b"slurmstepd: error: execve(): env: No such file\nsrun: error: n1: task 0: Exited with exit code 2\n",
            "slurmstepd: error: execve(): env: No such file",
        ),
        (b"-----\nNo module named yaml\n-----\n", "No module named yaml"),
        (b"srun: error: Unable to create step\n", "srun: error: Unable to create step"),
        (b"bad \xff\x1b[31m end", "bad \ufffd\\u001b[31m end"),
        (b"x" * 1_000_000 + b"\n" + b"y" * 1000, "y" * LONGEST),
    ],
)
def test_the_last_line_of_the_pilot_itself(written: bytes, line: str, tmp_path: Path) -> None:
    path = tmp_path / "x.err"
    path.write_bytes(written)
    assert last_line(path) == line


def test_what_is_no_file_has_no_last_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "none", tmp_path / "fifo"):
        assert last_line(path) == ""


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("exit 1: no space on alpha at 12:01", "exit 1: no space on beta at 13:59", True),
        ("python: No module named pilot", "python: No module named torch", False),
        ("cannot reach 10.0.0.1 port 4711", "cannot reach 10.0.0.1 port 53999", True),
    ],
)
def test_numbers_and_names_of_nodes_make_no_other_cause(one: str, other: str, same: bool) -> None:
    assert (cause(one, ["alpha"]) == cause(other, ["beta"])) is same
