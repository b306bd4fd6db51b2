"""A coordinator with 5,000 pilots and 200 trainers: all real except the agents, which only talk (over real TLS).

The pilots register; the trainers are submitted and get 25 nodes each; then they report once a second, and after a calm
period nodes are lost, leave with notice and join, a few at a time and hundreds at once. The report gives the
coordinator's targets at this size and the measurements: medians over all runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from benchmarks import scale_agents, scale_coordinator
from benchmarks.transport import running
from pilot.core.errors import PilotError
from pilot.protocol.pool_client import PoolClient
from pilot.submission.submission import LaunchSpec, Submission

PILOTS, TRAINERS, RUNS = 5000, 200, 5
PROCESSES = 4
CALM_S = 20.0
ROUNDS = 25
LIMIT_S = 600.0

SITE = """
from pilot.site.site import Site
site = Site(name="scale", scheduler="local", bind_address="127.0.0.1", interface="lo", grace_s=30, check="off")
"""

LAUNCH = LaunchSpec(
    script="/home/user/train.py", script_sha256="0" * 64, arguments=["--epochs", "90"], cwd="/home/user",
    python="/home/user/venv/bin/python", environment={"OMP_NUM_THREADS": "8"},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """``name`` is a key of a run; the measured value must be at most ``most``."""

    name: str
    most: float
    text: str


TARGETS = (
    Target("registered_s", 30.0, "all pilots are registered (s)"),
    Target("event_p99_ms", 250.0, "an event, from the wire to the last command, 99 of 100 (ms of the event loop)"),
    Target("busy", 0.5, "of one core while each trainer reports once a second"),
    Target("status_s", 1.0, "pilot status (s)"),
    Target("status_lines", 300, "pilot status (lines)"),
    Target("rss_mib", 300.0, "memory (MiB)"),
    Target("journal_mib", 50.0, "10,000 events of journal (MiB)"),
)


def main() -> int:
    """Exit status 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--pilots", type=int, default=PILOTS)
    parser.add_argument("--trainers", type=int, default=TRAINERS)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    runs = [run(arguments.pilots, arguments.trainers) for _ in range(arguments.runs)]
    medians = {target.name: median(made[target.name] for made in runs) for target in TARGETS}
    for target in TARGETS:
        met = medians[target.name] <= target.most
        print(f"{'met' if met else 'MISSED':<7}{medians[target.name]:10.3f}  at most {target.most:g}: {target.text}")
    if arguments.json is not None:
        targets = [asdict(target) | {"median": medians[target.name]} for target in TARGETS]
        arguments.json.write_text(json.dumps({"targets": targets, "runs": runs}, indent=2) + "\n")
    return 0 if all(medians[target.name] <= target.most for target in TARGETS) else 1


def run(pilots: int, trainers: int) -> dict[str, Any]:
    """One pool, from its first pilot to the last measurement."""
    with tempfile.TemporaryDirectory(prefix="pilot-scale-") as folder, Place(Path(folder), trainers) as place:
        found: dict[str, Any] = place.register(pilots)
        found |= place.submit(trainers, max(1, pilots // trainers))
        found |= place.calm(CALM_S)
        found |= place.status()
        found |= place.change()
        found |= place.sizes()
    print(json.dumps({k: v for k, v in found.items() if k != "events"}), flush=True)
    for kind, costs in found["events"].items():
        print(f"  {kind:<20}{json.dumps(costs)}", flush=True)
    return found


class Place:
    """A coordinator and fleets of agents, each in a process of its own."""

    def __init__(self, folder: Path, trainers: int) -> None:
        self._run_dir = folder / "run"
        self._site = folder / "scale.py"
        self._site.write_text(SITE)
        self._trainers = trainers
        self._stack = ExitStack()

    def __enter__(self) -> Place:
        options = ["--run-dir", str(self._run_dir), "--site", str(self._site), "--pilots", "0"]
        options += ["--settings", json.dumps({"max_parallel_trainers": self._trainers})]
        process, self._pipe = self._stack.enter_context(running(scale_coordinator.main, options))
        self._coordinator = psutil.Process(process.pid)
        self._file = self._run_dir / "connection.json"
        self._client = PoolClient(self._file, LIMIT_S)
        _until(self._answers)
        fleets = [self._stack.enter_context(running(scale_agents.main, self._file, n)) for n in range(PROCESSES)]
        self._fleets = [pipe for _, pipe in fleets]
        self._measured()
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._coordinator.children():
            child.kill()
        self._stack.close()

    def register(self, pilots: int) -> dict[str, Any]:
        """All pilots at once."""
        self._pilots = pilots
        with self._using() as used:
            self._fleet("join", pilots)
        return {"pilots": pilots, "registered_s": used["wall_s"], "registered_cpu_s": used["cpu_s"]}

    def submit(self, trainers: int, nodes: int) -> dict[str, Any]:
        """All trainers, one after the other, until each trains."""
        with self._using() as used:
            for _ in range(trainers):
                self._client.submit(Submission(launch=LAUNCH, max_nodes=nodes))
            _until(lambda: self._fleet("leaders") == trainers)
        return {"trainers": trainers, "started_s": used["wall_s"], "started_cpu_s": used["cpu_s"]} | {
            "start": _summary(self._measured())
        }

    def calm(self, seconds: float) -> dict[str, Any]:
        """Only reports and heartbeats."""
        with self._using() as used:
            time.sleep(seconds)
        self._measured()
        return {"busy": used["cpu_s"] / used["wall_s"]}

    def status(self) -> dict[str, Any]:
        """How long a user waits for ``pilot status``, its start-up included."""
        command = [sys.executable, "-P", "-m", "pilot", "status", "--run-dir", str(self._run_dir)]
        times, text = [], ""
        with self._using() as used:
            for _ in range(3):
                began_s = time.perf_counter()
                text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                times.append(time.perf_counter() - began_s)
        return {"status_s": median(times), "status_cpu_s": used["cpu_s"] / 3, "status_lines": text.count("\n")}

    def change(self) -> dict[str, Any]:
        """Nodes leave and join, a few at a time, then many at once."""
        self._measured()
        for _ in range(ROUNDS):
            for verb, count in (("lose", 4), ("notice", 4), ("join", 8)):
                self._fleet(verb, count)
                time.sleep(0.3)
        self._settle()
        for verb in ("lose", "join", "notice", "join"):
            self._fleet(verb, self._pilots // 10)
            self._settle()
        measured = self._measured()
        events = {kind: costs for kind, costs in measured["events"].items() if kind != "Progress"}
        every = sorted(cost for costs in events.values() for cost in costs)
        return {
            "event_p99_ms": 1000 * float(np.percentile(every, 99)),
            "longest_callback_ms": 1000 * measured["longest_callback_s"],
            "events": _summary(measured),
        }

    def sizes(self) -> dict[str, Any]:
        """Memory, and the journal."""
        journal = self._run_dir / "journal.jsonl"
        lines = sum(1 for _ in journal.open("rb"))
        mib = journal.stat().st_size / 2**20
        rss = self._coordinator.memory_info().rss / 2**20
        return {"rss_mib": rss, "journal_events": lines, "journal_mib": mib * 10_000 / lines}

    def _settle(self) -> None:
        """Wait until all trainers that trained before train again."""
        time.sleep(1.0)
        _until(lambda: self._fleet("leaders") == self._trainers)
        time.sleep(1.0)

    def _measured(self) -> dict[str, Any]:
        self._pipe.send("what")
        found: dict[str, Any] = self._pipe.recv()
        return found

    def _fleet(self, verb: str, count: int = 0) -> int:
        """Send it to all fleets, a share to each; the sum of their answers."""
        shares = [count // len(self._fleets) + (n < count % len(self._fleets)) for n in range(len(self._fleets))]
        for pipe, share in zip(self._fleets, shares, strict=True):
            pipe.send((verb, share))
        return sum(pipe.recv() for pipe in self._fleets)

    @contextmanager
    def _using(self) -> Iterator[dict[str, float]]:
        """Elapsed time, and the coordinator's CPU time."""
        used: dict[str, float] = {}
        began_s, cpu_s = time.perf_counter(), _cpu_s(self._coordinator)
        yield used
        used |= {"wall_s": time.perf_counter() - began_s, "cpu_s": _cpu_s(self._coordinator) - cpu_s}

    def _answers(self) -> bool:
        try:
            return self._file.exists() and bool(PoolClient(self._file, 5.0).trainers() or True)
        except PilotError:
            return False


def _summary(measured: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of the event loop, by kind of event."""
    found = {}
    for kind, costs in sorted(measured["events"].items()):
        ms = 1000 * np.array(costs)
        p50, p99 = np.percentile(ms, (50, 99))
        found[kind] = {
            "count": len(ms),
            "median_ms": round(p50, 2),
            "p99_ms": round(p99, 2),
            "max_ms": round(max(ms), 2),
        }
    return found


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _until(reached: Any) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not reached():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not reached within {LIMIT_S:g} s")
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
