"""Head to head: pilot, torchft, ``torchrun`` elastic, and restarts from snapshots, under one schedule of kills, joins,
a notice and a stopped node: three nodes on loopback, gloo, the same model, data and batch per node, in turns.

torchft runs in an environment of its own: ``python3.11 -m venv PEER && PEER/bin/pip install torchft-nightly``; then
``--torchft PEER/bin/python``, or ``TORCHFT_PYTHON`` in the environment. Without one its row is left out.

Each process records the steps that it has applied, with the samples' numbers. A step that a restart does again counts
once. A gap is the longest time without a step of any node from an event to the next one.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers_record import NODES, SAMPLES
from benchmarks.torchrun_peer import free_port
from pilot.host import proc
from tests.pools import Pool

_HERE = Path(__file__).parent
KILL, JOIN, NOTICE, STOP = "kill", "join", "notice", "stop"
SCHEDULE: list[tuple[float, str, int]] = [
    (40, KILL, 2),
    (60, JOIN, 2),
    (90, KILL, 1),
    (110, JOIN, 1),
    (140, NOTICE, 2),
    (160, STOP, 1),
]
"""Seconds, what happens, to which node. Node 0 stays: with ``torchrun`` it hosts the rendezvous."""
END_S = 190.0
_START_LIMIT_S = 120.0
_TOGETHER_S = 1.0
"""Processes of one restart do their first step within this time."""
_SETTLE_SHARE = 0.5
"""The share of a phase, its end, whose rate counts."""


@dataclass
class Subject:
    """One way to train: how a node of it starts, and what a change asks of the rest."""

    script: str
    start: Callable[[int], subprocess.Popen[bytes]]
    restarts: bool = False  #: whether a change makes all processes start again, from a snapshot
    by_hand: bool = False  #: whether this program restarts them
    nodes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def change(self, what: str, node: int) -> None:
        """Make one event of the schedule happen."""
        if self.by_hand:
            self._restart({*self.nodes} | {node} if what == JOIN else {*self.nodes} - {node})
        elif what == JOIN:
            self.nodes[node] = self.start(node)
        elif what == KILL:
            kill(self.nodes.pop(node))
        elif what == NOTICE:
            self.nodes.pop(node).terminate()
        else:
            for process in proc.tree(self.nodes[node].pid):
                process.suspend()

    def _restart(self, wanted: set[int]) -> None:
        self.end()
        os.environ["MASTER_PORT"], os.environ["WORLD_SIZE"] = str(free_port()), str(len(wanted))
        for rank, node in enumerate(sorted(wanted)):
            self.nodes[node] = self.start(rank)

    def end(self) -> None:
        """Kill what runs."""
        for process in self.nodes.values():
            kill(process)
        self.nodes.clear()


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a node with all that it started."""
    proc.kill(proc.tree(process.pid))
    process.wait()


def run(python: str, folder: Path, name: str, *command: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a process of a subject, which logs in ``folder``."""
    # Safe path: this folder has a module ``queue``.
    own = {"PYTHONPATH": str(_HERE.parent), "PYTHONSAFEPATH": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with (folder / f"log.{name}").open("ab") as log:
        return subprocess.Popen(
            [python, *command],
            stdout=log,
            stderr=log,
            env=os.environ | own | {"PEERS_FOLDER": str(folder)} | environment,
        )


@contextmanager
def pilot(folder: Path) -> Iterator[Subject]:
    """A pool on this machine, with the site ``local`` as it is."""
    os.environ |= {"PEERS_FOLDER": str(folder), "PYTHONPATH": str(_HERE.parent)}
    pool = Pool(folder)
    pool.pilot("up", "--site", "local", "--pilots", "0")
    given = ("--env", "PYTHONPATH", "--env", "PEERS_FOLDER", "--between-nodes", "gloo", "--max-nodes", str(NODES))
    try:
        name = pool.submit(_HERE / "peers_pilot.py", options=("--live", "--check", "off", *given, *pool.gains()))
        yield Subject("peers_pilot.py", lambda _: pool.agent())
        pool.pilot("ledger", name)  # it fails unless each sample was used once per epoch
    finally:
        for agent in pool.agents:
            kill(agent)
        pool.end()


@contextmanager
def torchft(folder: Path, python: str) -> Iterator[Subject]:
    """Its lighthouse with the settings of its README, and a process per node."""
    port = free_port()
    options = ["--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000"]
    command = [str(Path(python).with_name("torchft_lighthouse")), *options, "--bind", f"127.0.0.1:{port}"]
    with (folder / "log.lighthouse").open("wb") as log:
        lighthouse = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield Subject(
            "peers_torchft.py",
            lambda node: run(
                python,
                folder,
                str(node),
                str(_HERE / "peers_torchft.py"),
                REPLICA_GROUP_ID=str(node),
                TORCHFT_LIGHTHOUSE=f"http://127.0.0.1:{port}",
            ),
        )
    finally:
        kill(lighthouse)


@contextmanager
def torchrun(folder: Path) -> Iterator[Subject]:
    """An agent per node. The default waits 30 s for latecomers; without the variable a second agent's join hangs."""
    rendezvous = [
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{free_port()}",
        "--rdzv-id=peers",
        "--local-addr=127.0.0.1",
        "--rdzv-conf=last_call_timeout=1",
    ]
    options = [f"--nnodes=1:{NODES}", "--nproc-per-node=1", "--max-restarts=99", *rendezvous]
    command = ["-m", "torch.distributed.run", *options, str(_HERE / "peers_torchrun.py")]
    variable = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def start(node: int) -> subprocess.Popen[bytes]:
        return run(sys.executable, folder, str(node), *command, **variable)

    yield Subject("peers_torchrun.py", start, restarts=True)


@contextmanager
def restart(folder: Path) -> Iterator[Subject]:
    """Nodes of a fixed size, all of which this program starts again at each change; it learns of a change at once."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(NODES)}
    script = str(_HERE / "peers_torchrun.py")

    def start(rank: int) -> subprocess.Popen[bytes]:
        return run(sys.executable, folder, str(rank), script, RANK=str(rank))

    yield Subject("peers_torchrun.py", start, restarts=True, by_hand=True)


def play(subject: Subject, folder: Path, scale: float) -> dict[str, Any]:
    """Play the schedule, ``scale`` times as long, and return the subject's row."""
    for node in range(NODES):
        subject.nodes[node] = subject.start(node)
    limit_s = time.monotonic() + _START_LIMIT_S
    while sum(path.stat().st_size > 0 for path in folder.glob("record.*")) < NODES:
        if time.monotonic() > limit_s or any(process.poll() is not None for process in subject.nodes.values()):
            logs = [path.read_text()[-1000:] for path in [*folder.glob("log.*"), *folder.glob("agent*.log")]]
            raise TimeoutError("\n".join(["no steps of all nodes", *logs]))
        time.sleep(0.1)
    began_s = time.monotonic()
    events: list[tuple[float, str]] = []
    for at_s, what, node in SCHEDULE:
        time.sleep(max(0.0, began_s + at_s * scale - time.monotonic()))
        events.append((time.monotonic(), what))
        subject.change(what, node)
    time.sleep(max(0.0, began_s + END_S * scale - time.monotonic()))
    ended_s = time.monotonic()
    subject.end()
    return {**row(folder, subject, began_s, events, ended_s), "lines_changed": lines_changed(subject.script)}


Step = tuple[float, int, list[int], list[float]]


def row(
    folder: Path, subject: Subject, began_s: float, events: list[tuple[float, str]], ended_s: float
) -> dict[str, Any]:
    """Return what the records of one run show."""
    records = {path.name: _records(path, ended_s) for path in folder.glob("record.*")}
    records = {name: steps for name, steps in records.items() if steps}
    behind = useful(records, subject.restarts)
    # A step that only a killed node had applied is done again, with the same samples: it counts once.
    used = Counter(sample for _, sample in {(step, sample) for _, step, samples, _ in behind for sample in samples})
    marks = [began_s, *(when for when, _ in events), ended_s]
    phases = list(pairwise(marks))
    times = sorted(when for steps in records.values() for when, *_ in steps)
    rates: dict[int, list[float]] = defaultdict(list)
    for (begin_s, end_s), size in zip(phases, sizes(), strict=True):
        settled_s = end_s - (end_s - begin_s) * _SETTLE_SHARE
        samples = sum(len(s) for steps in records.values() for when, _, s, _ in steps if settled_s <= when < end_s)
        rates[size].append(samples / (end_s - settled_s))
    gaps: dict[str, list[float]] = defaultdict(list)
    joins: list[float] = []
    for (begin_s, end_s), (_, what) in zip(phases[1:], events, strict=True):
        gaps[what].append(longest_gap_s(times, begin_s, end_s))
        if what == JOIN:
            first = min((steps[0][0] for steps in records.values() if begin_s < steps[0][0] < end_s), default=end_s)
            joins.append(first - begin_s)
    return {
        "samples_per_s": {size: median(found) for size, found in sorted(rates.items())},
        "longest_gap_s": dict(gaps),
        "start_to_first_contribution_s": joins,
        "useful_samples": sum(used.values()),
        **uneven(used),
        "difference_at_the_end": _difference(behind),
    }


def sizes() -> list[int]:
    """How many nodes there are in each phase."""
    found = [NODES]
    for _, what, _ in SCHEDULE:
        found.append(found[-1] + (1 if what == JOIN else -1))
    return found


def longest_gap_s(times: list[float], begin_s: float, end_s: float) -> float:
    """Return the longest time without a step that ends after ``begin_s``, or has not ended by ``end_s``."""
    before = max((when for when in times if when <= begin_s), default=begin_s)
    within = [when for when in times if begin_s < when < end_s]
    return max(after - earlier for earlier, after in pairwise([before, *within, end_s]))


def uneven(used: Counter[int]) -> dict[str, int]:
    """Return how many samples were used less or more often than the others: in whole epochs and a part of one more,
    each is used n or n + 1 times.
    """
    counts = Counter(used[sample] for sample in range(SAMPLES))
    n = max(range(max(counts) + 1), key=lambda k: counts[k] + counts[k + 1])
    few = sum(many for count, many in counts.items() if count < n)
    return {"samples_lost": few, "samples_used_too_often": SAMPLES - few - counts[n] - counts[n + 1]}


def _records(path: Path, ended_s: float) -> list[Step]:
    lines = path.read_text().splitlines(keepends=True)
    steps = [json.loads(line) for line in lines if line.endswith("\n")]
    return [(when, step, samples, sums) for when, step, samples, sums in steps if when <= ended_s]


def useful(records: dict[str, list[Step]], restarts: bool) -> list[Step]:
    """Return the steps behind the final model: where all restart, a process's first step voids earlier ones from it
    on.
    """
    steps = [step for found in records.values() for step in found]
    if not restarts:
        return steps
    begins = [(found[0][0] - _TOGETHER_S, found[0][1]) for found in records.values()]
    return [one for one in steps if not any(one[0] < when and one[1] >= first for when, first in begins)]


def _difference(steps: list[Step]) -> float | None:
    """Return the largest difference of a tensor's sum between two nodes, after the last step that several compared."""
    sums: dict[int, list[list[float]]] = defaultdict(list)
    for _, step, _, found in steps:
        if found:
            sums[step].append(found)
    compared = [step for step, found in sums.items() if len(found) > 1]
    if not compared:
        return None
    return max(max(values) - min(values) for values in zip(*sums[max(compared)], strict=True))


def lines_changed(script: str) -> int:
    """Return how many lines of ``script`` are not in the plain loop; docstrings and what records do not count."""
    plain, own = [(_HERE / name).read_text().splitlines()[1:] for name in ("peers_plain.py", script)]
    return sum(line.startswith("+ ") and "record" not in line and line != "+ " for line in difflib.ndiff(plain, own))


def measure(python: str | None, scale: float, rounds: int, only: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each subject, all in turns."""
    subjects: dict[str, Callable[[Path], Any]] = {"pilot": pilot, "torchrun": torchrun, "restart": restart}
    if python:
        subjects["torchft"] = lambda folder: torchft(folder, python)
    else:
        print("torchft: not measured (--torchft, or TORCHFT_PYTHON)")
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in subjects if name in (only or subjects)}
    for _ in range(rounds):
        for name, found in rows.items():
            with tempfile.TemporaryDirectory(prefix="peers-") as folder, subjects[name](Path(folder)) as subject:
                try:
                    found.append(play(subject, Path(folder), scale))
                finally:
                    subject.end()
            print(f"{name:>9}: {json.dumps(found[-1])}", flush=True)
    return rows


def main() -> None:
    """Print the rows and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--torchft", default=os.environ.get("TORCHFT_PYTHON"), metavar="PYTHON")
    parser.add_argument("--scale", type=float, default=0.5, help="of the schedule's times (default: 0.5)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], choices=["pilot", "torchrun", "restart", "torchft"])
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    rows = measure(arguments.torchft, arguments.scale, arguments.rounds, arguments.only)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
