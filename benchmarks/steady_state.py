"""Steady training on two ranks against PyTorch DDP with gloo, both over TCP on loopback; and with our two ranks on one
node, which sum in its shared memory (gloo cannot).

Both train in the same two processes, in turns, so that a ratio compares what ran in the same minute. A step's time
includes the loader's; a round's time is the median of its steps; the ratio is the median over the rounds. DDP runs as
it is by default and with ``gradient_as_bucket_view=True``; the better one counts. A rank process's CPU time counts in
pilot's rounds only. ``--between`` chooses how pilot sums between the nodes; ``--busy`` adds that many processes that
compute all the time: one per core resembles a shared node.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import psutil

from benchmarks.steady_state_script import rank_process
from pilot.agent import fork_server
from pilot.protocol import wire
from tests.integration.plane import Node, plane

SCRIPT = Path(__file__).with_name("steady_state_script.py")
STEPS = {"1M": 60, "25M": 8, "100M": 4, "small CNN": 40, "300 small tensors": 60}
SHARED_MEMORY = ["small CNN", "25M"]
ROUNDS = 7
_WARM_UP_ROUNDS = 1
_WARM_UP_STEPS = 1
_SETTLE_S = 0.2
_WAIT_S = 2.0


def measure(subject: str, rounds: int, *, between: str = "", ranks_per_node: int = 1) -> dict[str, Any]:
    """Median step times (ms) and their ratio for one subject, our ranks on two nodes or on one."""
    options = {"between_nodes": between, "ranks_per_node": ranks_per_node}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = ["--subject", subject, "--steps", str(STEPS[subject]), "--rounds", str(rounds + _WARM_UP_ROUNDS)]
        with plane(folder, SCRIPT, *arguments, "--folder", name, **options) as cluster:
            nodes = cluster.start(2)
            cluster.form(nodes)
            rank_process(folder).write_text(str(nodes[0].rank_process(1).pid))
            waiting = _share_while_waiting(*nodes)
            cluster.wait(lambda: bool(nodes[0].heard(wire.TrainerFinished)), "the end", deadline_s=600)
            cluster.stop()
        rounds_run = json.loads((folder / "rank0.json").read_text())
    return _summary(rounds_run[_WARM_UP_ROUNDS:]) | {"rank_process_cpu_share_while_waiting": waiting}


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep this many processes computing."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def _share_while_waiting(waiting: Node, stopped: Node) -> float:
    """The share of one core that a rank process uses while the other node's training process stands still (warm-up)."""
    stopped.signal(signal.SIGSTOP)
    time.sleep(_SETTLE_S)
    before_s = _cpu_s(waiting)
    time.sleep(_WAIT_S)
    used_s = _cpu_s(waiting) - before_s
    stopped.signal(signal.SIGCONT)
    return used_s / _WAIT_S


def _cpu_s(node: Node) -> float:
    user, system, *_ = node.rank_process(1).cpu_times()
    return float(user + system)


def _summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    def medians(key: str) -> list[float]:
        return [median(one[key][_WARM_UP_STEPS:]) for one in rounds]

    rank_cpu = [one["rank_process_cpu_s"] / len(one["pilot_s"]) for one in rounds]
    ours = medians("pilot_s")
    peers = {name: medians(f"{name}_s") for name in ("ddp", "ddp_views")}
    all_ratios = {name: [t / o for o, t in zip(ours, theirs, strict=True)] for name, theirs in peers.items()}
    better = min(all_ratios, key=lambda name: median(all_ratios[name]))
    our_cpu, their_cpu = medians("pilot_cpu_s"), medians(f"{better}_cpu_s")
    cpu_ratios = [(own + rank) / t for own, rank, t in zip(our_cpu, rank_cpu, their_cpu, strict=True)]
    return {
        "pilot_ms": 1e3 * median(ours),
        "of which waiting for sums_ms": 1e3 * median(medians("wait_s")),
        "ddp_gloo_ms": 1e3 * median(peers[better]),
        "ddp_is_better_with_bucket_views": better == "ddp_views",
        "both_ddp_gloo_ms": {name: 1e3 * median(theirs) for name, theirs in peers.items()},
        "speed_relative_to_ddp": median(all_ratios[better]),
        "ratios": all_ratios[better],
        "training_process_cpu_ms_per_step": {"pilot": 1e3 * median(our_cpu), "ddp": 1e3 * median(their_cpu)},
        "rank_process_cpu_ms_per_step": 1e3 * fmean(rank_cpu),
        "processor_time_relative_to_ddp": median(cpu_ratios),
        "processor_time_ratios": cpu_ratios,
    }


def show(name: str, result: dict[str, Any]) -> dict[str, Any]:
    """Print a row of the table; returns the result."""
    cpu_ms, rank_ms = result["training_process_cpu_ms_per_step"], result["rank_process_cpu_ms_per_step"]
    print(
        f"{name:>24}: pilot {result['pilot_ms']:7.1f} ms, DDP {result['ddp_gloo_ms']:7.1f} ms,"
        f" {result['speed_relative_to_ddp']:.2f} × its speed; waits {result['of which waiting for sums_ms']:6.1f} ms;"
        f" of a core: {cpu_ms['pilot']:.1f} + {rank_ms:.1f} ms, DDP {cpu_ms['ddp']:.1f} ms,"
        f" {result['processor_time_relative_to_ddp']:.2f} ×;"
        f" while it waits {result['rank_process_cpu_share_while_waiting']:.1%}",
        flush=True,
    )
    return result


def main() -> None:
    """Print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--subjects", nargs="*", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--between", nargs="*", default=["mpi"], choices=["mpi", "gloo"], help="default: mpi")
    parser.add_argument("--busy", type=int, default=0, help="other processes that compute all the time (default: 0)")
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    os.environ |= fork_server.ALLOCATOR  # as in the agent's training processes; DDP runs in the same processes
    with busy(arguments.busy):
        for subject, between in product(arguments.subjects, arguments.between):
            name = subject if between == "mpi" else f"{subject}, {between} between"
            results[name] = show(name, measure(subject, arguments.rounds, between=between))
        for subject in [name for name in arguments.subjects if name in SHARED_MEMORY]:
            name = f"{subject}, shared memory"
            results[name] = show(name, measure(subject, arguments.rounds, ranks_per_node=2))
    results["cores"], results["busy"] = psutil.cpu_count(), arguments.busy
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
