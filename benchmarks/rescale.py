"""How long the survivors of a change do without a step, against restarting all processes from a checkpoint.

The stall of a change is the longest gap between two steps of a survivor around it, less the median step time. The
baseline is what a launcher without warm processes does: all processes end, as many as needed start (``import torch``,
build the model, join, load the checkpoint); its stall is counted from the last step before to the first one after.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.subjects import SUBJECTS
from pilot.io import wire
from tests.integration.plane import Node, Plane, plane

SCRIPT = Path(__file__).with_name("rescale_script.py")
STEPS_AROUND = 5
Change = Callable[[Plane, list[Node]], list[Node]]
"""Makes a change of a group of two and returns the survivors."""


def up(cluster: Plane, group: list[Node]) -> list[Node]:
    """A third node joins, as planned."""
    newcomer = cluster.start()
    cluster.form([*group, *newcomer], switch=True)
    return group


def down(cluster: Plane, group: list[Node]) -> list[Node]:
    """One of two leaves, as planned."""
    cluster.form(group[:1], switch=True)
    return group[:1]


def loss(cluster: Plane, group: list[Node]) -> list[Node]:
    """One of two is killed without notice; the other goes on alone."""
    cluster.kill(group[1])
    cluster.dissolve()
    cluster.form(group[:1])
    return group[:1]


CHANGES: dict[str, Change] = {"planned up 2 → 3": up, "planned down 2 → 1": down, "unannounced loss 2 → 1": loss}


def stall_s(subject: str, change: Change) -> float:
    """The stall of one change."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with plane(folder, SCRIPT, "--subject", subject, "--folder", name) as cluster:
            group = cluster.start(2)
            cluster.form(group)
            before = _await_steps(cluster, folder, group[0], STEPS_AROUND)
            (survivor, *_) = change(cluster, group)
            _await_steps(cluster, folder, survivor, before + STEPS_AROUND)
            times = [seconds for _, seconds in _steps(folder, survivor)]
    gaps = [after - earlier for earlier, after in pairwise(times)]
    return max(gaps[1:]) - median(gaps)


def restart_s(subject: str) -> float:
    """The baseline: two processes end, two start from the checkpoint."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with plane(folder, SCRIPT, "--subject", subject, "--folder", name) as cluster:
            group = cluster.start(2)
            cluster.form(group)
            _await_steps(cluster, folder, group[0], STEPS_AROUND)
            cluster.pause()
            group[0].tell(wire.WriteState("t1", "restart"))
            cluster.wait(lambda: bool(group[0].heard(wire.CheckpointDone)), "the checkpoint")
            last_s = _steps(folder, group[0])[-1][1]
            for node in group:
                cluster.kill(node)
            fresh = cluster.start(2, cold=True)
            cluster.form(fresh)
            _await_steps(cluster, folder, fresh[0], 3)
            times = [seconds for _, seconds in _steps(folder, fresh[0])]
    return times[0] - last_s - median(b - a for a, b in pairwise(times))


def _await_steps(cluster: Plane, folder: Path, node: Node, count: int) -> int:
    cluster.wait(lambda: len(_steps(folder, node)) >= count, f"{count} steps", deadline_s=300)
    return len(_steps(folder, node))


def _steps(folder: Path, node: Node) -> list[tuple[int, float]]:
    path = folder / f"steps.{node.process.pid}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(step), float(seconds)) for step, seconds in (line.split() for line in lines)]


def measure(subject: str, rounds: int) -> dict[str, Any]:
    """Median stalls of one subject, the changes and the baseline in turn."""
    stalls: dict[str, list[float]] = {name: [] for name in (*CHANGES, "restart from a checkpoint")}
    for _ in range(rounds):
        for name, change in CHANGES.items():
            stalls[name].append(stall_s(subject, change))
        stalls["restart from a checkpoint"].append(restart_s(subject))
    restart = median(stalls["restart from a checkpoint"])
    return {
        name: {"stall_s": median(values), "all_s": values, "times_shorter": restart / max(median(values), 1e-3)}
        for name, values in stalls.items()
    }


def main() -> None:
    """Print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--subjects", nargs="*", default=["1M", "25M"], choices=list(SUBJECTS))
    arguments = parser.parse_args()
    results = {}
    for subject in arguments.subjects:
        results[subject] = measure(subject, arguments.rounds)
        for name, result in results[subject].items():
            print(f"{subject:>6} {name:>26}: {result['stall_s']:6.3f} s, {result['times_shorter']:5.1f} × shorter")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
