"""How long a change stalls its survivors, against two peers: restarting all processes from a checkpoint, and
``torchrun`` elastic.

The stall of a change is the longest gap between two steps of a survivor around it, minus the median step time. The
first peer is what a launcher without warm processes does: all processes end, as many as needed start (``import torch``,
build the model, join, load the checkpoint); its stall lasts from the last step before to the first one after. For the
second see ``torchrun_peer``. A silent node is measured on a whole pool, since the coordinator has to detect it.

``--between mpi gloo`` measures each change both ways, in turns, and gives gloo's stalls relative to MPI's.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise, product
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
MPI = "mpi"


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
ROWS = [*CHANGES, FORM, SILENT, RESTART, TORCHRUN]
STALLS = "stall_s", "all_s"


def stall_s(subject: str, between: str, size: int, change: Change) -> float:
    """The stall of one change of a group of ``size``."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _workers(subject, folder, between) as cluster:
            group = cluster.start(size)
            cluster.form(group)
            before = _await_steps(cluster, folder, group[0], STEPS_AROUND)
            (survivor, *_) = change(cluster, group)
            _await_steps(cluster, folder, survivor, before + STEPS_AROUND)
            return _longest_gap_s(_steps(folder, survivor.process.pid))


def _workers(subject: str, folder: Path, between: str = MPI) -> AbstractContextManager[Plane]:
    arguments = "--subject", subject, "--folder", str(folder)
    return plane(folder, SCRIPT, *arguments, warm_ranks=WARM_RANKS, between_nodes=between)


def form_s(subject: str, between: str, size: int = 2) -> float:
    """From the order to form a group of ``size`` warm workers until its leader reports that it trains."""
    with tempfile.TemporaryDirectory() as name, _workers(subject, Path(name), between) as cluster:
        group = cluster.start(size)
        began_s = time.monotonic()
        cluster.form(group)
        return time.monotonic() - began_s


def silent_s(subject: str, between: str) -> float:
    """The stall when one of two nodes falls silent (SIGSTOP to all its processes).

    The site's time-out is part of it: the coordinator may find the node earlier, by asking what the survivor waits for.
    """
    with tempfile.TemporaryDirectory() as name:
        pool = Pool(Path(name))
        try:
            pool.up()
            agents = [pool.agent(), pool.agent()]
            options = ("--live", "--env", "PYTHONPATH", "--between-nodes", between)
            trainer = pool.submit(SCRIPT, "--subject", subject, "--folder", name, options=options)
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
        with _workers(subject, folder) as cluster:
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


def measurements(subject: str, betweens: Sequence[str], rows: Sequence[str]) -> dict[str, Callable[[], float]]:
    """What measures each of these rows, by the row's name."""
    found: dict[str, Callable[[], float]] = {}
    for row, between in product(rows, betweens):
        name = row if between == MPI else f"{row}, {between} between"
        if row in CHANGES:
            found[name] = partial(stall_s, subject, between, *CHANGES[row])
        elif row in (FORM, SILENT):
            found[name] = partial(form_s if row == FORM else silent_s, subject, between)
        else:
            found[row] = partial(restart_s if row == RESTART else torchrun_peer.stall_s, subject)
    return found


def measure(subject: str, betweens: Sequence[str], rows: Sequence[str], rounds: int) -> dict[str, Any]:
    """Median stalls for one subject, all in turn, and how they compare in one run."""
    measuring = measurements(subject, betweens, rows)
    stalls: dict[str, list[float]] = {name: [] for name in measuring}
    for _ in range(rounds):
        for name, seconds in measuring.items():
            stalls[name].append(seconds())
    medians = {name: max(median(values), 1e-3) for name, values in stalls.items()}
    results: dict[str, Any] = {}
    for name, values in stalls.items():
        results[name] = {"stall_s": median(values), "all_s": values}
        results[name] |= {
            f"times_shorter_than_{peer}": medians[row] / medians[name]
            for peer, row in (("restart", RESTART), ("torchrun", TORCHRUN))
            if row in medians
        }
        by_mpi = name.rpartition(", ")[0]
        if by_mpi in medians:
            results[name]["relative_to_mpi"] = medians[name] / medians[by_mpi]
    return results


def main() -> None:
    """Print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--subjects", nargs="*", default=["tiny", "25M"], choices=list(SUBJECTS))
    parser.add_argument("--between", nargs="*", default=[MPI], choices=[MPI, "gloo"], help="default: mpi")
    parser.add_argument("--rows", nargs="*", default=ROWS, choices=ROWS, help="default: all")
    arguments = parser.parse_args()
    # The processes that a pool and torchrun start import this folder.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    results = {}
    for subject in arguments.subjects:
        results[subject] = measure(subject, arguments.between, arguments.rows, arguments.rounds)
        for name, result in results[subject].items():
            ratios = [f"{key.replace('_', ' ')}: {value:.2f}" for key, value in result.items() if key not in STALLS]
            print(f"{subject:>6} {name:>43}: {result['stall_s']:6.3f} s", *ratios, sep=", ", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
