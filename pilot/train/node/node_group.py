"""The process group within a node. A worker's training processes start and end together, so the ordinary collectives of
``torch.distributed`` work between them, through all generations.

It is used for two things. *Collectives* move gradients (:meth:`NodeGroup.reduce`, :meth:`NodeGroup.spread`), with gloo
on CPUs and NCCL on GPUs. *Words* are numbers by which the processes of a node stay in step
(:mod:`pilot.train.node.node_ties`), always with gloo.

Its store is a file in the agent's private directory, and the ports of gloo and NCCL are bound to the loopback
interface. The groups are separate from the default group, which the script may create, also by :func:`node_mesh`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from pilot.core.errors import UserError
from pilot.train.node.devices import own_device
from pilot.train.node.forming import gloo_on, used_interfaces
from pilot.train.node.membership import Seat
from pilot.train.node.replica import formed

FABRIC, STORE = "PILOT_NODE_FABRIC", "PILOT_NODE_STORE"
"""The agent's variables with the way in which a node's processes sum, and the path of their store."""

LOOPBACK = "lo"
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""The variables with the network interface of torch's backends."""

NEVER = timedelta(days=365)
"""The time limit of gloo and NCCL. It never expires: an agent examines and ends a process that waits too long."""


class Work(Protocol):
    """A pending collective."""

    def is_completed(self) -> bool:
        """Return whether it is complete."""

    def wait(self) -> Any:
        """Wait until it is complete; on a GPU the current stream waits."""


def fabric_of(environment: Mapping[str, str], device: torch.device) -> str:
    """Return how the processes of a node sum gradients on ``device``: the site's choice, or else ``shared-memory`` on
    CPUs and ``nccl`` on GPUs; :class:`UserError` if that is impossible.
    """
    chosen = environment.get(FABRIC, "")
    if chosen == "nccl" and device.type == "cpu":
        raise UserError("the site's node_fabric is nccl and the model is on the CPU: move it to the GPU, or use gloo")
    return chosen or ("shared-memory" if device.type == "cpu" else "nccl")


class NodeGroup:
    """The process group of a node's training processes, with the file ``store``; ``fabric``: ``gloo`` or ``nccl``."""

    def __init__(self, seat: Seat, store: Path, fabric: str) -> None:
        self.rank, self.size = seat.rank, seat.size
        self._gloo = fabric == "gloo"
        self._sums = gloo_group(seat, store, "sums") if self._gloo else _nccl(seat, store)

    def reduce(self, complete: torch.Tensor, own: torch.Tensor) -> Work:
        """Start to write this process's part (number ``rank`` of ``size`` equal ones) of the sum of all ``complete``
        into ``own``. The tensors are one-dimensional and of equal length; ``complete`` is overwritten. All processes
        must call this in the same order.
        """
        if not self._gloo:
            scattered: Work = self._sums._reduce_scatter_base(own, complete)
            return scattered
        # gloo's reduce-scatter takes twice as long
        return ThenCopy(self._sums.allreduce([complete]), own, complete.chunk(self.size)[self.rank])

    def spread(self, own: torch.Tensor, complete: torch.Tensor) -> Work:
        """Start to write the concatenation of all ``own`` into ``complete``."""
        work: Work = self._sums._allgather_base(complete, own)
        return work


class ThenCopy:
    """A pending collective, followed by a copy of ``source`` to ``target``."""

    def __init__(self, work: Work, target: torch.Tensor, source: torch.Tensor) -> None:
        self._work, self._target, self._source = work, target, source

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def wait(self) -> None:
        self._work.wait()
        self._target.copy_(self._source)


def node_mesh() -> Any:
    """Return :func:`replica_mesh` of a replica that is one node; :class:`~pilot.core.errors.UserError` if it is not."""
    if Seat.of(os.environ).nodes > 1:
        raise UserError("pilot.train.node_mesh: with --nodes-per-replica use pilot.train.replica_mesh")
    return replica_mesh()


def replica_mesh() -> Any:
    """Return the ``DeviceMesh`` of this replica's processes, one-dimensional, for ``fully_shard(module, mesh=mesh)``.

    It creates the default process group of ``torch.distributed`` over them, so the script must not create one itself
    (:class:`~pilot.core.errors.UserError`). Under plain ``python``, it is a mesh of one process.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    seat, kind = Seat.of(os.environ), own_device().type
    if not dist.is_initialized():
        backend = "cpu:gloo" if kind == "cpu" else f"cpu:gloo,{kind}:nccl"
        # NCCL connects now: no addresses come later
        own: Any = None if kind == "cpu" or seat.nodes == 1 else torch.device(kind, Seat.on_node(os.environ).rank)

        def make(store: Any) -> Any:
            of: Any = {"rank": seat.rank, "world_size": seat.size, "timeout": NEVER}
            dist.init_process_group(backend, store=store, device_id=own, **of)
            return dist.group.WORLD

        if seat.nodes > 1:
            keep_to(used_interfaces(os.environ)[0])
            formed("mesh", make)
        else:
            keep_to(LOOPBACK)
            alone: Any = dist.HashStore  # type: ignore[attr-defined]  # its stubs leave it out
            make(store_of(Path(os.environ[STORE]), seat.size, "mesh") if STORE in os.environ else alone())
    elif dist.get_world_size() != seat.size:
        raise UserError(
            f"the script has made a process group of {dist.get_world_size()}, and its model is to be divided over"
            f" {seat.size} training processes: leave init_process_group to pilot.train.replica_mesh (or node_mesh)"
        )
    return init_device_mesh(kind, (seat.size,), mesh_dim_names=("replica",))


def keep_to(interface: str) -> None:
    """Bind the ports of gloo and NCCL in this process to ``interface``, unless the job's environment sets another."""
    for name in INTERFACES:
        os.environ.setdefault(name, interface)


def store_of(path: Path, size: int, prefix: str) -> Any:
    """Return the part ``prefix`` of the node's store."""
    from torch.distributed import FileStore, PrefixStore  # type: ignore[attr-defined]  # its stubs leave them out

    return PrefixStore(prefix, FileStore(str(path), size))


def gloo_group(seat: Seat, store: Path, name: str) -> Any:
    """Return a gloo process group of the replica's processes, which meet at ``store`` if they are on one node."""
    of: Any = {"rank": seat.rank, "size": seat.size, "limit": NEVER}
    if seat.nodes > 1:
        return formed(name, partial(gloo_on, used_interfaces(os.environ)[0], **of))
    return gloo_on(LOOPBACK, store_of(store, seat.size, name), **of)


def _nccl(seat: Seat, store: Path) -> Any:
    from torch.distributed import ProcessGroupNCCL

    keep_to(LOOPBACK)
    options = ProcessGroupNCCL.Options()
    options._timeout = NEVER
    return ProcessGroupNCCL(store_of(store, seat.size, "sums"), seat.rank, seat.size, options)
