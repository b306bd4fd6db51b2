"""Sums of 64 MB over ranks on this host, by the type in which they are sent: seconds, bytes, and what rounding costs.

``pack_s`` is how long a rank rounds its numbers, ``sum_s`` how long it adds up its share of all ranks and rounds that,
``unpack_s`` how long it widens the result. Bytes are those on the loopback interface, so nothing else should use it::

    unshare --net sh -c "ip link set lo up && python -m benchmarks.narrow"
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from pilot.comm import mpi, mpich, world
from pilot.comm.narrow import WIRES, packed, unpacked
from pilot.comm.pipeline import Pipeline, SharedPart, pieces, put_pieces

NUMBERS = 16 * 1024 * 1024
REPEATS = 7
LIMIT_S = 300.0


def main() -> None:
    """Print a table; ``--json`` also writes it to a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.narrow", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.as_rank:
        _be_rank()
        return
    command = [sys.executable, "-m", "benchmarks.narrow", "--as-rank"]
    environment = mpich.environment(os.environ, interface="lo", provider="tcp")
    ranks = world.run(command, arguments.ranks, environment, LIMIT_S)
    if any(rank.returncode for rank in ranks):
        sys.exit("\n".join(rank.stderr for rank in ranks))
    results = json.loads(ranks[0].stdout)
    for wire, one in results.items():
        print(f"{wire:9}", "  ".join(f"{name} {value:.4g}" for name, value in one.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


def _be_rank() -> None:
    fabric = mpi.start()
    numbers = np.random.default_rng(fabric.rank).standard_normal(NUMBERS).astype(np.float32)
    results = {wire or "float32": _measure(fabric, numbers, wire) for wire in ("", *WIRES)}
    if fabric.rank == 0:
        least = results["float32"]["bytes"]
        print(json.dumps({wire: one | {"fewer": least / one["bytes"]} for wire, one in results.items()}), flush=True)
    mpi.finish()


def _measure(fabric: mpi.MpiFabric, numbers: np.ndarray, wire: str) -> dict[str, float]:
    """Medians; bytes sent by all ranks together for one sum."""
    seconds, sent = [], []
    for _ in range(REPEATS):
        part = SharedPart((numbers.copy(),), wire)
        _wait(fabric.barrier().done)
        before, started_s = _sent_bytes(), time.perf_counter()
        sums = Pipeline()
        put_pieces(sums, fabric, [part], 0, rail=0, rails=1)
        _wait(sums.done)
        seconds.append(time.perf_counter() - started_s)
        _wait(fabric.barrier().done)
        sent.append(_sent_bytes() - before)
    measured = {"seconds": median(seconds), "bytes": float(median(sent))}
    return measured | (_rounding(numbers, wire, fabric.size) if wire else {})


def _rounding(numbers: np.ndarray, wire: str, ranks: int) -> dict[str, float]:
    """What each part of the rounding takes for all numbers, in the pieces in which they are sent."""
    times: dict[str, list[float]] = {"pack_s": [], "sum_s": [], "unpack_s": []}
    for _ in range(REPEATS):
        spent = dict.fromkeys(times, 0.0)
        for piece in pieces(numbers):
            taken, rows = _timed(lambda piece=piece: packed(piece, ranks, wire))
            spent["pack_s"] += taken
            spent["sum_s"] += _timed(lambda rows=rows: packed(unpacked(rows, wire).sum(axis=0), 1, wire))[0]
            spent["unpack_s"] += _timed(lambda rows=rows: unpacked(rows, wire))[0]
        for name, taken in spent.items():
            times[name].append(taken)
    return {name: median(each) for name, each in times.items()}


def _timed(work: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    started_s = time.perf_counter()
    result = work()
    return time.perf_counter() - started_s, result


def _wait(done: Callable[[], bool]) -> None:
    while not done():
        time.sleep(1e-4)


def _sent_bytes() -> int:
    """What the loopback interface has sent."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[8])
    return 0


if __name__ == "__main__":
    main()
