"""Nodes of two ranks each: plain models by shared memory and by gloo, and sharded ones, on one and two nodes, against
PyTorch's DDP and HSDP over gloo with as many ranks. All on CPUs of one machine: that says nothing of NCCL's speed.

One after the other in turns, so that a ratio compares what ran in the same minutes; a run's time is the median of its
steps, a ratio the median over the rounds. The bytes between nodes are what the kernel counts on the sockets of the rank
processes. ``--checkpoint`` compares checkpoints as well (:mod:`benchmarks.node_checkpoint`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks import node_checkpoint
from benchmarks.node_script import PER_NODE
from benchmarks.subjects import make
from pilot.agent import fork_server
from pilot.io import wire
from tests.integration.plane import plane

SCRIPT = Path(__file__).with_name("node_script.py")
STEPS = {"1M": 30, "25M": 6, "100M": 4}
ROUNDS = 3
_WARM_UP_STEPS = 1
_SENT = re.compile(r"bytes_sent:(\d+)")

Result = dict[str, Any]


def ours(kind: str, fabric: str, subject: str, nodes: int) -> Result:
    """One run of a session."""
    steps = STEPS[subject]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = ["--kind", kind, "--subject", subject, "--steps", str(steps), "--folder", name]
        with plane(folder, SCRIPT, *arguments, ranks_per_node=PER_NODE, node_fabric=fabric) as cluster:
            members = cluster.start(nodes * PER_NODE)
            cluster.form(members)
            cluster.wait(lambda: bool(members[0].heard(wire.TrainerFinished)), "the end", deadline_s=600)
            sent = [_sent_bytes(member.rank_process(1).pid) for member in members[::PER_NODE]]
            cluster.stop()
        found = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{kind}-*.json"))]
    return _summary(found) | {"sent_bytes_per_step_and_node": max(sent) / steps}


def theirs(kind: str, subject: str, ranks: int) -> Result:
    """One run of PyTorch's own."""
    with tempfile.TemporaryDirectory() as name:
        arguments = ["--kind", kind, "--subject", subject, "--steps", str(STEPS[subject]), "--folder", name]
        peers = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.node_script", *arguments],
                env={**os.environ, "PEER_RANK": str(rank), "PEER_RANKS": str(ranks), "PEER_STORE": f"{name}/store"},
            )
            for rank in range(ranks)
        ]
        if any(peer.wait() for peer in peers):
            raise SystemExit(f"{kind} failed")
        return _summary([json.loads(path.read_text()) for path in sorted(Path(name).glob(f"{kind}-*.json"))])


def _summary(ranks: list[dict[str, Any]]) -> Result:
    return {
        "step_ms": 1e3 * median(ranks[0]["seconds"][_WARM_UP_STEPS:]),
        "state_bytes_of_a_process": max(rank["state_bytes"] for rank in ranks),
    }


def _sent_bytes(pid: int) -> int:
    """By all TCP sockets that the process has open."""
    lines = subprocess.run(["ss", "-tinpHO"], capture_output=True, text=True, check=True).stdout.splitlines()
    return sum(int(count) for line in lines if f"pid={pid}," in line for count in _SENT.findall(line))


def compare(subject: str, nodes: int, rounds: int) -> Result:
    """All ways to train ``subject`` on ``nodes`` nodes, and what they are against each other."""
    runs: dict[str, list[Result]] = {}
    for _ in range(rounds):
        for fabric in ("shared-memory", "gloo"):
            runs.setdefault(f"plain, {fabric}", []).append(ours("plain", fabric, subject, nodes))
        runs.setdefault("sharded", []).append(ours("sharded", "gloo", subject, nodes))
        runs.setdefault("DDP", []).append(theirs("ddp", subject, nodes * PER_NODE))
        if nodes > 1:
            runs.setdefault("HSDP", []).append(theirs("hsdp", subject, nodes * PER_NODE))
    found: Result = {name: {key: median(run[key] for run in its) for key in its[0]} for name, its in runs.items()}
    peers = {name: "HSDP" if name == "sharded" and nodes > 1 else "DDP" for name in runs if name not in ("DDP", "HSDP")}
    gradients = 4 * sum(parameter.numel() for parameter in make(subject).parameters())
    least = 2 * (nodes - 1) / nodes * gradients
    for name, peer in peers.items():
        ratios = [a["step_ms"] / b["step_ms"] for a, b in zip(runs[peer], runs[name], strict=True)]
        found[name] |= {f"speed_relative_to_{peer}": median(ratios), "ratios": ratios}
        if nodes > 1:
            found[name]["sent_relative_to_the_least"] = found[name]["sent_bytes_per_step_and_node"] / least
    whole = found["DDP"]["state_bytes_of_a_process"]
    found["sharded"]["state_relative_to_the_whole"] = found["sharded"]["state_bytes_of_a_process"] / whole
    return found


def show(subject: str, nodes: int, found: Result) -> None:
    """One line for each way."""
    for name, result in found.items():
        extra = {key: round(value, 3) for key, value in result.items() if "relative" in key}
        print(f"{subject:>6}, {nodes} node(s), {name:>20}: {result['step_ms']:8.1f} ms {extra}", flush=True)


def main() -> None:
    """Print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--subjects", nargs="*", default=["25M", "100M"], choices=list(STEPS))
    parser.add_argument("--nodes", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--checkpoint", action="store_true")
    arguments = parser.parse_args()
    os.environ |= fork_server.ALLOCATOR  # as in the agent's training processes
    results: Result = {"cores": psutil.cpu_count()}
    for subject in arguments.subjects:
        if arguments.checkpoint:
            results[f"{subject}, checkpoint"] = found = node_checkpoint.compare(subject)
            node_checkpoint.show(subject, found)
        for nodes in arguments.nodes:
            found = compare(subject, nodes, arguments.rounds)
            results[f"{subject}, {nodes} node(s)"] = found
            show(subject, nodes, found)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
