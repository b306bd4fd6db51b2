"""How long a change stalls a ``torchrun`` script, in a pool's generations and under ``torchrun``.

The same script (``torchrun_script``), the same snapshots, two nodes on loopback. A gap is the time from the last step
before the change to the first one after it, minus the median step time.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks import torchrun_peer
from tests.integration.plane import Node, Plane, plane

BOOT = Path(__file__).parents[1] / "tests" / "ddp" / "boot.py"
STEPS_BEFORE, STEPS_AFTER = 8, 5
WARM_RANKS = 2
GROW, SHRINK, LOSS = "1 to 2", "2 to 1, planned", "2 to 1, killed"


def gap_s(subject: str, size: int, change: Callable[[Plane, list[Node]], int]) -> float:
    """Seconds without a step when ``change`` is made to a group of ``size``; it returns the new size."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with plane(folder, BOOT, str(torchrun_peer.SCRIPT), subject, name, warm_ranks=WARM_RANKS) as cluster:
            group = cluster.start(size)
            cluster.form(group)
            cluster.wait(lambda: len(_steps(folder, size, 0.0)) >= STEPS_BEFORE, "steps before the change")
            began_s = time.monotonic()
            after = change(cluster, group)
            cluster.wait(lambda: len(_steps(folder, after, began_s)) >= STEPS_AFTER, "steps after the change")
            last_s, steps = _steps(folder, size, 0.0)[-1], _steps(folder, after, began_s)
    return steps[0] - last_s - median(b - a for a, b in pairwise(steps))


def grow(cluster: Plane, group: list[Node]) -> int:
    """Another node joins."""
    cluster.form([*group, *cluster.start(1)], switch=True)
    return 2


def shrink(cluster: Plane, group: list[Node]) -> int:
    """One of two leaves."""
    cluster.form(group[:1], switch=True)
    return 1


def lose(cluster: Plane, group: list[Node]) -> int:
    """One of two is killed."""
    cluster.kill(group[1])
    cluster.dissolve()
    cluster.form(group[:1])
    return 1


def _steps(folder: Path, size: int, since_s: float) -> list[float]:
    path = folder / f"steps.{size}"
    times = [float(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [time_s for time_s in times if time_s > since_s]


def measure(subject: str, rounds: int) -> dict[str, dict[str, float]]:
    """Median gaps, ours and ``torchrun``'s, in turn."""
    ours: dict[str, list[float]] = {GROW: [], SHRINK: [], LOSS: []}
    theirs: dict[str, list[float]] = {GROW: [], LOSS: []}
    for _ in range(rounds):
        ours[GROW].append(gap_s(subject, 1, grow))
        theirs[GROW].append(torchrun_peer.stall_s(subject))
        ours[SHRINK].append(gap_s(subject, 2, shrink))
        ours[LOSS].append(gap_s(subject, 2, lose))
        theirs[LOSS].append(torchrun_peer.loss_s(subject))
    peer = {GROW: theirs[GROW], SHRINK: theirs[LOSS], LOSS: theirs[LOSS]}
    return {
        name: {
            "gap_s": median(values),
            "torchrun_s": median(peer[name]),
            "times_shorter": median(peer[name]) / max(median(values), 1e-3),
        }
        for name, values in ours.items()
    }


def main() -> None:
    """Print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--subject", default="tiny")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])  # the script imports this folder
    results = measure(arguments.subject, arguments.rounds)
    for name, result in results.items():
        gap, peer, ratio = result["gap_s"], result["torchrun_s"], result["times_shorter"]
        print(f"{name:>16}: {gap:6.3f} s, torchrun {peer:6.3f} s, {ratio:5.1f} × shorter")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
