"""Traces and their sources, plain and compressed, and scaling curves."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pilot.research.traces.changes import read_changes
from pilot.research.traces.pbs import import_pbs
from pilot.research.traces.sacct import import_sacct
from pilot.research.traces.statistics import describe
from pilot.research.traces.swf import import_swf
from pilot.research.traces.workload import read_workload
from pilot.submission.submission import read_curve
from tests.security.fuzz.mutate import changed_bytes, changed_json, changed_lines
from tests.security.fuzz.target import ACCEPTED, Target
from tests.security.special_files import SPECIAL, put

EVENTS = "# a comment\ntime_s,node,event\n0,n1,join\n0,n2,join\n30.5,n1,leave\n60,n3,join\n90,n2,leave\n"
SACCT = "JobID|Start|End|NodeList\n" + "".join(
    f"{n}|2026-02-10T1{n}:00:00|2026-02-10T1{n}:30:00|n[{n}-{n + 2}]\n" for n in range(5)
)
PBS = (
    "02/10/2026 10:00:00;S;1.s;user=a start=1000 exec_host=n1/0*4+n2/0*4\n"
    "02/10/2026 10:30:00;E;1.s;user=a start=1000 end=2000 exec_host=n1/0*4+n2/0*4\n"
    "02/10/2026 10:40:00;E;2.s;user=a start=2500 end=3000 exec_host=n1/0*4\n"
)
SWF = "; MaxNodes: 8\n; MaxProcs: 16\n" + "".join(
    f"{n} {n * 500} 0 {n * 90 + 60} 4 -1 -1 4 -1 -1 1 1 1 1 1 1 -1 -1\n" for n in range(1, 6)
)
TRAINERS = (
    "trainer,submit_s,min_nodes,max_nodes,rescale_up_s,rescale_down_s,samples,curve,priority\n"
    "a,0,1,4,20,10,1000,0,\nb,10,1,2,20,10,1000,0,2\n"
)
CURVES = b'[{"nodes": [1, 2, 4], "samples_per_s": [10.0, 19.0, 35.0], "objective_per_s": [1, 2, 3]}]'
CURVE = "# measured\nnodes,samples_per_s\n1,1210.5\n2,2300\n4,4100 # not linear\n8 7000\n"
CELLS = [
    "", "-1", "nan", "inf", "1e308", "-1e308", "1e-320", "99999999999999999999", "9" * 5000, "x", "\0", '"', '""',
    "a,b", "2026-13-40T99:00:00", "0001-01-01T00:00:00", "9999-12-31T23:59:59", "2026-02-10", "Unknown", "+inf",
    "0x10", "1_0", "\x1b[2J", "é" * 100, "join", "leave", "n1", "None assigned", "x" * 200_000, "exec_host=",
    "start=1e400", "1e400", "0", "1", "1,2,3", "; MaxNodes: 0",
]  # fmt: skip
HUGE_SWF = [
    "; MaxNodes: 99999999999\n", "; MaxNodes: 9" + "9" * 5000 + "\n", "; MaxProcs: 0\n",
    "; MaxProcs: 1\n; MaxNodes: 1\n",
]  # fmt: skip
Read = Callable[[Path], Any]


def _workload(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(CURVES)
    read_workload(path, other)


def _curves(path: Path) -> None:
    other = path.with_name("other")
    other.write_text(TRAINERS)
    read_workload(other, path)


KINDS: list[tuple[str, Read]] = [
    (EVENTS, lambda path: describe(read_changes(path))),
    (SACCT, import_sacct),
    (PBS, lambda path: import_pbs([path])),
    (SWF, import_swf),
    (TRAINERS, _workload),
    (CURVES.decode(), _curves),
    (CURVE, read_curve),
]


def make(rng: random.Random, number: int) -> tuple[Read, bytes | str]:
    """The file's content, or the kind of special file."""
    text, read = KINDS[number % len(KINDS)]
    if rng.random() < 0.04:
        return read, rng.choice(SPECIAL)
    data = _changed(rng, text)
    if rng.random() < 0.3:
        data = _compressed(rng, data, text.encode())
    return read, data


def _changed(rng: random.Random, text: str) -> bytes:
    if text == CURVES.decode():
        return changed_json(rng, CURVES)
    if text == SWF and rng.random() < 0.2:
        return (rng.choice(HUGE_SWF) + text.partition("\n")[2]).encode()
    if rng.random() < 0.3:
        return changed_bytes(rng, text.encode())
    return changed_lines(rng, text, ",|; ", CELLS).encode()


def _compressed(rng: random.Random, data: bytes, text: bytes) -> bytes:
    match rng.randrange(5):
        case 0:
            return gzip.compress(data) + gzip.compress(data)
        case 1:
            return changed_bytes(rng, gzip.compress(data))
        case 2:
            return _bomb(text, b" " * (1 << 20), 3000)
        case 3:
            return _bomb(text, b"\n" * (1 << 20), 300)
        case _:
            return gzip.compress(data)


def _bomb(head: bytes, piece: bytes, count: int) -> bytes:
    """``count`` times a piece that compresses to almost nothing."""
    packed = gzip.compress(piece)
    return gzip.compress(head) + packed * count


def attempt(folder: Path, value: tuple[Read, bytes | str]) -> str:
    """Read it."""
    read, content = value
    read(put(folder / "trace", content))
    return ACCEPTED


TARGET = Target("traces", 900, 100, attempt, make, limit_s=30.0)
