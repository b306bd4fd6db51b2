"""How long a change stalls its survivors, against two peers: restarting all processes from a checkpoint, and
``torchrun`` elastic.

The stall of a change is the longest gap between two steps of a survivor around it, minus the median step time. The
first peer is what a launcher without warm processes does: all processes end, as many as needed start (``import torch``,
build the model, join, load the checkpoint); its stall lasts from the last step before to the first one after. For the
second see ``torchrun_peer``. A silent node is measured on a whole pool, since the coordinator has to detect it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import torchrun_peer
from benchmarks.subjects import SUBJECTS
from pilot.core.commands import WriteCheckpoint
from pilot.host import proc
from pilot.protocol import wire
from tests.integration.plane import Node, Plane, plane
from tests.pools import Pool

SCRIPT = Path(__file__).with_name("rescale_script.py")
STEPS_AROUND = 5
WARM_RANKS = 2
"""Rank processes per node: one for the group before the change, one for the group after it. A pilot always has one
ready.
"""
Change = Callable[[Plane, list[Node]], list[Node]]
"""Changes a group and returns the survivors."""
FORM, SILENT = "forming a group of 2", "silent node, time-out included"
RESTART, TORCHRUN = "restart from a checkpoint", "torchrun elastic 1 → 2"


def up(cluster: Plane, group: list[Node], newcomers: int = 1) -> list[Node]:
    """Others join, as planned."""
    cluster.form([*group, *cluster.start(newcomers)], switch=True)
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


CHANGES: dict[str, tuple[int, Change]] = {
    "planned up 1 → 2": (1, up),
    "planned up 1 → 4": (1, partial(up, newcomers=3)),
    "planned down 2 → 1": (2, down),
    "unannounced loss 2 → 1": (2, loss),
}


def stall_s(subject: str, size: int, change: Change) -> float:
    """The stall of one change of a group of ``size``."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with plane(folder, SCRIPT, "--subject", subject, "--folder", name, warm_ranks=WARM_RANKS) as cluster:
            group = cluster.start(size)
            cluster.form(group)
            before = _await_steps(cluster, folder, group[0], STEPS_AROUND)
            (survivor, *_) = change(cluster, group)
            _await_steps(cluster, folder, survivor, before + STEPS_AROUND)
            return _longest_gap_s(_steps(folder, survivor.process.pid))


def form_s(subject: str, size: int = 2) -> float:
    """From the order to form a group of ``size`` warm workers until its leader reports that it trains."""
    with (
        tempfile.TemporaryDirectory() as name,
        plane(Path(name), SCRIPT, "--subject", subject, "--folder", name, warm_ranks=WARM_RANKS) as cluster,
    ):
        group = cluster.start(size)
        began_s = time.monotonic()
        cluster.form(group)
        return time.monotonic() - began_s


def silent_s(subject: str) -> float:
    """The stall when one of two nodes falls silent (SIGSTOP to all its processes).

    The site's time-out is part of it: the coordinator may find the node earlier, by asking what the survivor waits for.
    """
    with tempfile.TemporaryDirectory() as name:
        pool = Pool(Path(name))
        try:
            pool.up()
            agents = [pool.agent(), pool.agent()]
            trainer = pool.submit(SCRIPT, "--subject", subject, "--folder", name, options=("--env", "PYTHONPATH"))
            pool.until_step(trainer, STEPS_AROUND, nodes=2)
            survivor = pool.workers(agents[0])[0].pid
            for process in proc.tree(agents[1].pid):
                process.suspend()
            before = len(_steps(pool.folder, survivor))
            pool.until("it goes on", lambda _: len(_steps(pool.folder, survivor)) >= before + STEPS_AROUND)
            return _longest_gap_s(_steps(pool.folder, survivor))
        finally:
            pool.kill_tree(agents[1])
            pool.end()


def _longest_gap_s(times: list[float]) -> float:
    """The longest gap between two steps, the first excluded, minus the median gap."""
    gaps = [after - earlier for earlier, after in pairwise(times)]
    return max(gaps[1:]) - median(gaps)


def restart_s(subject: str) -> float:
    """The baseline: two processes end, two start from the checkpoint."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with plane(folder, SCRIPT, "--subject", subject, "--folder", name, warm_ranks=WARM_RANKS) as cluster:
            group = cluster.start(2)
            cluster.form(group)
            _await_steps(cluster, folder, group[0], STEPS_AROUND)
            cluster.pause()
            group[0].tell(WriteCheckpoint("t1", "", "restart"))
            cluster.wait(lambda: bool(group[0].heard(wire.CheckpointWritten)), "the checkpoint")
            last_s = _steps(folder, group[0].process.pid)[-1]
            for node in group:
                cluster.kill(node)
            fresh = cluster.start(2, cold=True)
            cluster.form(fresh)
            _await_steps(cluster, folder, fresh[0], 3)
            times = _steps(folder, fresh[0].process.pid)
    return times[0] - last_s - median(b - a for a, b in pairwise(times))


def _await_steps(cluster: Plane, folder: Path, node: Node, count: int) -> int:
    cluster.wait(lambda: len(_steps(folder, node.process.pid)) >= count, f"{count} steps", deadline_s=300)
    return len(_steps(folder, node.process.pid))


def _steps(folder: Path, worker: int | None) -> list[float]:
    """When each step of the worker with this process id ended."""
    path = folder / f"steps.{worker}"
    return [float(line) for line in path.read_text().splitlines()] if path.exists() else []


def measure(subject: str, rounds: int) -> dict[str, Any]:
    """Median stalls for one subject, the changes and the peers in turn."""
    stalls: dict[str, list[float]] = {name: [] for name in (*CHANGES, FORM, SILENT, RESTART, TORCHRUN)}
    for _ in range(rounds):
        for name, (size, change) in CHANGES.items():
            stalls[name].append(stall_s(subject, size, change))
        stalls[FORM].append(form_s(subject))
        stalls[SILENT].append(silent_s(subject))
        stalls[RESTART].append(restart_s(subject))
        stalls[TORCHRUN].append(torchrun_peer.stall_s(subject))
    return {
        name: {
            "stall_s": median(values),
            "all_s": values,
            "times_shorter_than_restart": median(stalls[RESTART]) / max(median(values), 1e-3),
            "times_shorter_than_torchrun": median(stalls[TORCHRUN]) / max(median(values), 1e-3),
        }
        for name, values in stalls.items()
    }


def main() -> None:
    """Print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--subjects", nargs="*", default=["tiny", "25M"], choices=list(SUBJECTS))
    arguments = parser.parse_args()
    # The processes that a pool and torchrun start import this folder.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    results = {}
    for subject in arguments.subjects:
        results[subject] = measure(subject, arguments.rounds)
        for name, result in results[subject].items():
            restart, torchrun = result["times_shorter_than_restart"], result["times_shorter_than_torchrun"]
            print(
                f"{subject:>6} {name:>29}: {result['stall_s']:6.3f} s, shorter than a restart {restart:6.1f} ×,"
                f" than torchrun {torchrun:6.1f} ×"
            )
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
