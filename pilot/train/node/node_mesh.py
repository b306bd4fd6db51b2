"""The mesh over which a script shards its model: the processes of one node."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from pilot.core.errors import UserError
from pilot.train.node.membership import Seat
from pilot.train.node.node_group import NEVER, STORE, keep_to_loopback, store_of


def node_mesh() -> Any:
    """The ``DeviceMesh`` of this node's processes, one-dimensional, for ``fully_shard(module, mesh=mesh)``.

    It creates the default process group of ``torch.distributed`` over them, so the script must not create one itself
    (:class:`~pilot.core.errors.UserError`). Under plain ``python``, it is a mesh of one process.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    seat, accelerator = Seat.of(os.environ), torch.accelerator.current_accelerator()
    kind = accelerator.type if accelerator is not None else "cpu"
    if not dist.is_initialized():
        keep_to_loopback()
        store: Any = dist.HashStore()  # type: ignore[attr-defined]  # its stubs leave it out
        if STORE in os.environ:
            store = store_of(Path(os.environ[STORE]), seat.size, "mesh")
        backend = "cpu:gloo" if kind == "cpu" else f"cpu:gloo,{kind}:nccl"
        dist.init_process_group(backend, store=store, rank=seat.rank, world_size=seat.size, timeout=NEVER)
    elif dist.get_world_size() != seat.size:
        raise UserError(
            f"pilot.train.node_mesh: the script has made a process group of {dist.get_world_size()}, and a node has"
            f" {seat.size} training processes: leave init_process_group to node_mesh"
        )
    return init_device_mesh(kind, (seat.size,), mesh_dim_names=("node",))
