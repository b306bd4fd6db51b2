"""Checkpoints of a sharded model on two nodes of two ranks, against ``torch.distributed.checkpoint`` in the same run.

``python -m benchmarks.node_checkpoint`` starts them. Each way is timed from a barrier until all ranks are done; *stall*
is the part in which a script cannot train. Memory is a process's peak above what it held before. Ours and
``async_save`` write a copy while training continues; ``save`` writes from the parameters' own memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.node_script import shard
from benchmarks.subjects import BATCH, data, make
from pilot.checkpoint import store, tree
from pilot.checkpoint.publish import own_rows
from pilot.checkpoint.snapshot import Snapshots

NODES, PER_NODE = 2, 2
RANKS = NODES * PER_NODE
ROUNDS = 5
MIB = 2**20


def compare(subject: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """Start the ranks; rank 0's results, with the largest memory of any rank."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.node_checkpoint", "--subject", subject, "--folder", folder]
        command += ["--rounds", str(rounds)]
        peers = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(RANKS)]
        if any(peer.wait() for peer in peers):
            raise SystemExit("a rank of benchmarks.node_checkpoint failed")
        found: dict[str, Any] = json.loads(Path(folder, "found.json").read_text())
    return found


def show(subject: str, found: dict[str, Any]) -> None:
    """One line per way."""
    for name, its in found.items():
        told = (
            f"{its['seconds']:.2f} s, {its['stall_s']:.2f} s of them a stall, {its['memory_mib']:.0f} MiB more memory"
        )
        print(f"{subject:>6}, checkpoint by {name}: {told}", flush=True)


def run(subject: str, folder: Path, rank: int, rounds: int) -> None:
    """Run as one rank."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("cpu:gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    model, optimizer = _trained(subject)
    ways = {"pilot": _Ours(model, optimizer), "save": _Saved(model, optimizer), "async_save": _Async(model, optimizer)}
    found: dict[str, list[list[float]]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            found[name].append(_measured(way, folder / f"{name}-{number}"))
    if rank == 0:
        told = {
            name: dict(zip(("stall_s", "seconds", "memory_mib"), map(median, zip(*its, strict=True)), strict=True))
            for name, its in found.items()
        }
        (folder / "found.json").write_text(json.dumps(told))
    dist.barrier()


def _trained(subject: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model sharded within each node, and an Adam optimizer that has state."""
    model = make(subject)
    shard(model, init_device_mesh("cpu", (NODES, PER_NODE), mesh_dim_names=("nodes", "node"))["node"])
    optimizer = torch.optim.Adam(model.parameters())
    inputs, labels = data(subject, BATCH).tensors
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


class _Ours:
    """As ``pilot.train.ranks.saver`` does: a copy, parts, an index."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._held, self._snapshots = (model, optimizer), Snapshots()

    def __call__(self, folder: Path) -> Callable[[], None]:
        model, optimizer = self._held
        folder.mkdir(exist_ok=True)
        state = tree.encode({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        copy = self._snapshots.take(own_rows(state, dist.get_rank() // PER_NODE, NODES))

        def finish() -> None:
            store.write_part(folder, 1, 1, dist.get_rank(), RANKS, copy)
            dist.barrier()
            if dist.get_rank() == 0:
                store.write_index(folder, 1, 1, RANKS, 3)

        return finish


class _Saved:
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._held = model, optimizer

    def state(self) -> dict[str, Any]:
        of_model, of_optimizer = get_state_dict(*self._held)
        return {"model": of_model, "optimizer": of_optimizer}

    def __call__(self, folder: Path) -> Callable[[], None]:
        dcp.save(self.state(), checkpoint_id=folder)
        return lambda: None


class _Async(_Saved):
    def __call__(self, folder: Path) -> Callable[[], None]:
        future: Any = dcp.async_save(self.state(), checkpoint_id=folder)
        return lambda: future.result()


def _measured(way: Callable[[Path], Callable[[], None]], folder: Path) -> list[float]:
    """Stall and time in seconds, memory in MiB: the maximum over the ranks."""
    dist.barrier()
    before, began_s = _fresh_peak(), time.perf_counter()
    finish = way(folder)
    stalled_s = time.perf_counter()
    finish()
    peak = _status("VmHWM") - before
    dist.barrier()
    told = torch.tensor([stalled_s - began_s, time.perf_counter() - began_s, peak / MIB], dtype=torch.float64)
    dist.all_reduce(told, dist.ReduceOp.MAX)
    most: list[float] = told.tolist()
    return most


def _fresh_peak() -> int:
    """Resident bytes now; resets the kernel's peak counter."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Print the results, or run as one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subject", default="25M")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        run(arguments.subject, arguments.folder, arguments.rank, arguments.rounds)
        return
    show(arguments.subject, compare(arguments.subject, arguments.rounds))


if __name__ == "__main__":
    main()
