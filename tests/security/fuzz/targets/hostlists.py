"""Slurm's node lists, as ``sacct`` writes them into a log and ``sinfo`` into a file of nodes."""

from __future__ import annotations

import random
from pathlib import Path

from pilot.research.traces.sacct import import_sacct
from tests.security.fuzz.target import ACCEPTED, Target

SAMPLES = ["n1", "n[1-4]", "nid[00001-00003,00007],login1", "a[1-2]b[3-4]", "x[01-10,12]-ib", "None assigned"]
PIECES = [
    "[", "]", "[[", "]]", "-", ",", "0", "9", "99999999", "[1-99999999]", "[0-999]", "[1-1000]" * 3, "[9-1]", "\0",
    "[00000000000000000001-3]", "[1-" + "9" * 5000 + "]", "١", "[١-٩]", "[a-z]", "[]", "[,]", " ", "|", "n" * 70_000,
    "[1-999999]," * 60, "n[1-200000],m[1-200000]", "[" * 5000,
]  # fmt: skip
HEADER = "JobID|Start|End|NodeList\n"


def make(rng: random.Random, _number: int) -> str:
    """A log of a few jobs."""
    return HEADER + "".join(
        f"{job}|2026-02-10T1{job}:00:00|2026-02-10T1{job}:30:00|{_list(rng)}\n" for job in range(rng.choice((2, 3, 9)))
    )


def _list(rng: random.Random) -> str:
    text = rng.choice(SAMPLES)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(PIECES) + text[at + rng.randrange(2) :]
    return text


def attempt(folder: Path, text: str) -> str:
    """Import it."""
    (path := folder / "log.txt").write_text(text)
    import_sacct(path)
    return ACCEPTED


TARGET = Target("hostlists", 400, 20, attempt, make, limit_s=60.0)
