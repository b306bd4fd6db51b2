"""Files of scaling curves."""

from __future__ import annotations

import os
import random
from pathlib import Path

from pilot.submission.submission import read_curve
from tests.security.fuzz.mutate import changed_bytes, changed_lines
from tests.security.fuzz.target import ACCEPTED, Target

FILE = "# measured\nnodes,samples_per_s\n1,1210.5\n2,2300\n4,4100 # not linear\n8 7000\n"
CELLS = [
    "",
    "-1",
    "nan",
    "inf",
    "1e308",
    "1e400",
    "x",
    "\0",
    "0",
    "1",
    "9" * 5000,
    "\x1b[2J",
    "1,2,3",
    "é",
    "x" * 100_000,
]


def make(rng: random.Random, number: int) -> bytes | str:
    """The file's content, or the kind of special file."""
    if number < 4:
        return ("fifo", "folder", "loop", "zeros")[number]
    if rng.random() < 0.5:
        return changed_bytes(rng, FILE.encode())
    return changed_lines(rng, FILE, ", ", CELLS).encode()


def prepare(folder: Path) -> Path:
    """The file's path."""
    return folder / "curve"


def attempt(path: Path, content: bytes | str) -> str:
    """Read it."""
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    match content:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case "zeros":
            path.symlink_to("/dev/zero")
        case bytes():
            path.write_bytes(content)
    read_curve(path)
    return ACCEPTED


TARGET = Target("curve files", 300, 40, make, prepare, attempt)
