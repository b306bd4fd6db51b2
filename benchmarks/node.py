"""Nodes of two ranks each: plain models by shared memory and by gloo, and sharded ones, on one and two nodes, against
PyTorch's DDP and FSDP (on two nodes HSDP) over gloo with as many ranks. Two nodes sum through their rank processes, or
by gloo (*gloo between*). In *replicas of two nodes* each of the two is a replica, over which the model is divided. All
on the CPUs of one machine, so it says nothing about NCCL's speed.

Each way is up at the same time as its peer, and they take turns (:mod:`benchmarks.turns`); a block's time is the median
of its steps, a ratio the median over the blocks. The bytes between nodes are the kernel's counts for the rank
processes' sockets during the blocks; for *gloo between* there is no count. Memory is a process's growth from before it
made its model to after its last step, without freed memory. ``--checkpoint`` compares checkpoints as well
(:mod:`benchmarks.node_checkpoint`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from benchmarks import node_checkpoint
from benchmarks.subjects import make
from benchmarks.turns import Turns
from pilot.agent import fork_server
from tests.integration.plane import Node, plane

SCRIPT = Path(__file__).with_name("node_script.py")
STEPS = {"1M": 20, "25M": 4, "100M": 2}
"""Steps per block."""
ROUNDS = 5


class Way(NamedTuple):
    """A way to train on some replicas, and the peer's ``kind``. ``fabric``, ``between``: how a node sums, and nodes."""

    kind: str
    fabric: str
    between: str
    peer: str
    nodes_per_replica: int = 1
    per_node: int = 2

    @property
    def per_replica(self) -> int:
        """Training processes of a replica."""
        return self.nodes_per_replica * self.per_node


WAYS = {
    "plain, shared memory": Way("plain", "shared-memory", "mpi", "ddp"),
    "plain, gloo": Way("plain", "gloo", "mpi", "ddp"),
    "sharded": Way("sharded", "gloo", "mpi", "hsdp"),
    "plain, gloo between": Way("plain", "gloo", "gloo", "ddp"),
    "sharded, gloo between": Way("sharded", "gloo", "gloo", "hsdp"),
    "replicas of two nodes": Way("sharded", "gloo", "gloo", "hsdp", nodes_per_replica=2, per_node=1),
    "replicas of two nodes, two processes each": Way("sharded", "gloo", "gloo", "hsdp", nodes_per_replica=2),
}
_WARM_UP_STEPS = 1
_DEADLINE_S = 300.0
_LOOK_S = 0.005
_STATE_BYTES = 16
"""Bytes per float32 parameter: the parameter, its gradient, and Adam's two moments."""
_SENT = re.compile(r"bytes_sent:(\d+)")

Result = dict[str, Any]


@contextmanager
def ours(way: Way, replicas: int, given: list[str]) -> Iterator[tuple[Turns, list[Node]]]:
    """A way to train with a session."""
    options = {"ranks_per_node": way.per_node, "node_fabric": way.fabric, "between_nodes": way.between}
    options |= {"nodes_per_replica": way.nodes_per_replica}
    with (
        tempfile.TemporaryDirectory() as name,
        plane(Path(name), SCRIPT, "--kind", way.kind, "--folder", name, *given, **options) as cluster,
    ):
        members = cluster.start(replicas * way.per_replica)
        cluster.form(members, wait=False)
        wait = lambda done: cluster.wait(done, "a block of steps", _DEADLINE_S)  # noqa: E731  # it is passed on
        yield Turns(Path(name), len(members), wait), members[:: way.per_node]
        cluster.wait_finished()
        cluster.stop()


@contextmanager
def theirs(kind: str, ranks: int, arguments: list[str]) -> Iterator[Turns]:
    """A way to train with PyTorch's own means."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "benchmarks.node_script", "--kind", kind, "--folder", name, *arguments]
        peers = [subprocess.Popen(command, env={**os.environ, "PEER_RANK": str(rank)}) for rank in range(ranks)]

        def wait(done: Callable[[], bool]) -> None:
            while not done():
                if any(peer.poll() for peer in peers):
                    raise SystemExit(f"{kind} failed")
                time.sleep(_LOOK_S)

        try:
            yield Turns(Path(name), len(peers), wait)
        finally:
            for peer in peers:
                peer.kill()
                peer.wait()


def compare(way: Way, subject: str, replicas: int, rounds: int) -> Result:
    """One way and its peer: times, bytes sent, and memory held."""
    peer = way.peer
    arguments = ["--subject", subject, "--replicas", str(replicas), "--processes", str(way.per_replica)]
    arguments += ["--steps", str(STEPS[subject]), "--blocks", str(1 + rounds)]
    processes = replicas * way.per_replica
    with ours(way, replicas, arguments) as (us, leaders), theirs(peer, processes, arguments) as them:
        ways = {"pilot": us, peer: them}
        for turns in ways.values():
            turns.run()
        before = _sent_bytes(leaders)
        blocks = [{name: turns.run() for name, turns in ways.items()} for _ in range(rounds)]
        sent = [now - then for now, then in zip(_sent_bytes(leaders), before, strict=True)]
    steps = {name: [1e3 * median(block[name][0]["seconds"][_WARM_UP_STEPS:]) for block in blocks] for name in ways}
    ratios = [its / our for our, its in zip(steps["pilot"], steps[peer], strict=True)]
    numbers = sum(parameter.numel() for parameter in make(subject).parameters())
    result: Result = {f"{name}_ms": median(times) for name, times in steps.items()}
    result |= {f"speed_relative_to_{peer}": median(ratios), "ratios": ratios}
    for name, ranks in blocks[-1].items():
        held = max(rank["memory_bytes"] for rank in ranks)
        result[f"{name}_memory_relative_to_the_whole_state"] = held / (_STATE_BYTES * numbers)
    if replicas > 1 and way.between == "mpi":
        least = 2 * (replicas - 1) / replicas * 4 * numbers
        result["sent_relative_to_the_least"] = max(sent) / (rounds * STEPS[subject]) / least
    return result


def _sent_bytes(leaders: list[Node]) -> list[int]:
    """Over all open TCP sockets of each node's rank process."""
    lines = subprocess.run(["ss", "-tinpHO"], capture_output=True, text=True, check=True).stdout.splitlines()
    pids = [leader.rank_process(1).pid for leader in leaders]
    return [sum(int(n) for line in lines if f"pid={pid}," in line for n in _SENT.findall(line)) for pid in pids]


def main() -> None:
    """Print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--subjects", nargs="*", default=["25M", "100M"], choices=list(STEPS))
    parser.add_argument("--nodes", nargs="*", type=int, default=[1, 2], help="or replicas of nodes")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--checkpoint", action="store_true")
    arguments = parser.parse_args()
    os.environ |= fork_server.ALLOCATOR  # as in the agent's training processes
    results: Result = {"cores": psutil.cpu_count()}
    for subject in arguments.subjects:
        if arguments.checkpoint:
            results[f"{subject}, checkpoint"] = found = node_checkpoint.compare(subject)
            node_checkpoint.show(subject, found)
        for nodes, way in product(arguments.nodes, arguments.ways):
            if nodes == 1 and WAYS[way].between != "mpi":
                continue  # a node that is alone sums with nobody
            name = f"{subject}, {nodes} node(s), {way}"
            results[name] = found = compare(WAYS[way], subject, nodes, arguments.rounds)
            print(f"{name}: {_in_short(found)}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


def _in_short(found: Result) -> str:
    return ", ".join(f"{key} {value:.3f}" for key, value in found.items() if isinstance(value, float))


if __name__ == "__main__":
    main()
