"""What each rank of ``benchmarks.node`` runs: ``--kind plain`` or ``sharded`` with a session, ``hsdp`` or ``ddp`` with
PyTorch's own over gloo (``PEER_RANK`` and ``PEER_STORE`` say who it is then). It leaves the seconds of its steps in the
folder, and what its memory is made of.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import pilot.train
from benchmarks.subjects import BATCH, data, make
from pilot.checkpoint.shards import local_of

NODES, PER_NODE = 2, 2


def main() -> None:
    """Train, and write down what it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", required=True)
    parser.add_argument("--subject", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ours = arguments.kind in ("plain", "sharded")
    seconds = (_with_session if ours else _by_itself)(arguments)
    rank = os.environ["PEER_RANK"] if not ours else Path(os.environ["PILOT_WORKER_SOCKET"]).stem[1:]
    (arguments.folder / f"{arguments.kind}-{rank}.json").write_text(json.dumps(seconds))


def _with_session(arguments: argparse.Namespace) -> dict[str, Any]:
    model = make(arguments.subject)
    if arguments.kind == "sharded":
        shard(model, pilot.train.node_mesh())
    optimizer = torch.optim.Adam(model.parameters())
    session = pilot.train.session(model, optimizer, lr_rule="none")
    loader = session.loader(data(arguments.subject, arguments.steps * BATCH * 2), batch_size=BATCH)
    times = []
    for _ in session.epochs(1):
        began_s = time.perf_counter()
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            session.step(loss)
            times.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
    return {"seconds": times, "state_bytes": _state_bytes(model, optimizer)}


def _by_itself(arguments: argparse.Namespace) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh

    rank, ranks = int(os.environ["PEER_RANK"]), int(os.environ["PEER_RANKS"])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{os.environ['PEER_STORE']}", rank=rank, world_size=ranks)
    model = make(arguments.subject)
    if arguments.kind == "hsdp":
        shard(model, init_device_mesh("cpu", (NODES, PER_NODE), mesh_dim_names=("nodes", "node")))
    call: Callable[..., Any] = nn.parallel.DistributedDataParallel(model) if arguments.kind == "ddp" else model
    optimizer = torch.optim.Adam(model.parameters())
    share = BATCH // PER_NODE
    inputs, labels = data(arguments.subject, arguments.steps * share).tensors
    times = []
    for step in range(arguments.steps):
        began_s = time.perf_counter()
        batch = slice(step * share, (step + 1) * share)
        optimizer.zero_grad()
        nn.functional.cross_entropy(call(inputs[batch]), labels[batch]).backward()
        optimizer.step()
        times.append(time.perf_counter() - began_s)
    dist.barrier()
    return {"seconds": times, "state_bytes": _state_bytes(model, optimizer)}


def shard(model: nn.Module, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for module in model.modules():
        if isinstance(module, nn.Linear):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _state_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Of parameters, gradients and what the optimizer keeps, in this process."""
    held = [*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None)]
    held += [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return sum(local_of(tensor).nbytes for tensor in held)


if __name__ == "__main__":
    main()
