"""What each rank of ``benchmarks.node`` runs: ``--kind plain`` or ``sharded`` with a session, ``ddp`` or ``hsdp`` with
PyTorch's own means over gloo (``PEER_RANK`` is then its rank). It reports the seconds of each block's steps, and its
memory after the last of them.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import nn

import pilot.train
from benchmarks.subjects import BATCH, data, make
from benchmarks.turns import Seat


def main() -> None:
    """Train when it is its turn, and record the times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", required=True)
    parser.add_argument("--subject", required=True)
    parser.add_argument("--replicas", type=int, required=True)
    parser.add_argument("--processes", type=int, required=True, help="of a replica: most often a node")
    parser.add_argument("--steps", type=int, required=True, help="of a block")
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ours = arguments.kind in ("plain", "sharded")
    rank = int(Path(os.environ["PILOT_WORKER_SOCKET"]).stem[1:] if ours else os.environ["PEER_RANK"])
    _import_all()
    before, seat = _resident(), Seat(arguments.folder, rank)
    for block in (_with_session if ours else _by_itself)(arguments, rank, seat):
        seconds = list(islice(block, arguments.steps))
        memory = _resident() - before
        list(block)  # the session ends its epoch
        seat.tell({"seconds": seconds, "memory_bytes": memory})


def _with_session(arguments: argparse.Namespace, _rank: int, seat: Seat) -> Iterator[Iterator[float]]:
    model = make(arguments.subject)
    if arguments.kind == "sharded":
        shard(model, pilot.train.replica_mesh())
    optimizer = torch.optim.Adam(model.parameters())
    session = pilot.train.session(model, optimizer, lr_rule="none")
    samples = data(arguments.subject, arguments.steps * BATCH * arguments.replicas)
    loader = session.loader(samples, batch_size=BATCH)
    for _ in session.epochs(arguments.blocks):
        seat.wait()
        yield _steps(model, optimizer, loader, session.step)


def _by_itself(arguments: argparse.Namespace, rank: int, seat: Seat) -> Iterator[Iterator[float]]:
    from torch.distributed.device_mesh import init_device_mesh

    replicas, processes = arguments.replicas, arguments.processes
    ranks = replicas * processes
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{arguments.folder}/store", rank=rank, world_size=ranks)
    model = make(arguments.subject)
    if arguments.kind == "hsdp":
        mesh = init_device_mesh("cpu", (replicas, processes), mesh_dim_names=("replicas", "replica"))
        shard(model, mesh if replicas > 1 else mesh["replica"])
    call: Callable[..., Any] = nn.parallel.DistributedDataParallel(model) if arguments.kind == "ddp" else model
    optimizer = torch.optim.Adam(model.parameters())
    share = BATCH // processes
    inputs, labels = data(arguments.subject, arguments.steps * share).tensors
    batches = list(zip(inputs.split(share), labels.split(share), strict=True))
    for _ in range(arguments.blocks):
        seat.wait()
        yield _steps(call, optimizer, batches, lambda _loss: optimizer.step())
    dist.barrier()


def _steps(call: Any, optimizer: torch.optim.Optimizer, batches: Any, step: Callable[[Any], object]) -> Iterator[float]:
    """Seconds of each step."""
    began_s = time.perf_counter()
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(call(x), y)
        loss.backward()
        step(loss)
        yield time.perf_counter() - began_s
        began_s = time.perf_counter()


def shard(model: nn.Module, mesh: Any) -> None:
    """Shard each layer, and the rest."""
    from torch.distributed.fsdp import fully_shard

    for module in model.modules():
        if isinstance(module, nn.Linear):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _import_all() -> None:
    """Import what training would import later, so that it does not count as growth."""
    importlib.import_module("torch.distributed.fsdp")
    tiny = nn.Linear(1, 1)
    tiny(torch.ones(1)).backward()
    torch.optim.Adam(tiny.parameters()).step()


def _resident() -> int:
    """In bytes, without freed memory."""
    ctypes.CDLL(None).malloc_trim(0)
    held: int = psutil.Process().memory_info().rss
    return held


if __name__ == "__main__":
    main()
