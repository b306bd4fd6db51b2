"""The communicator within a node: a worker's training processes live and die together, so the ordinary collectives of
``torch.distributed`` work between them, through all generations.

It is used for two things. *Collectives* move gradients (:meth:`NodeGroup.reduce`, :meth:`NodeGroup.spread`), with gloo
on CPUs and NCCL on GPUs. *Words* are numbers by which the processes of a node stay in step
(:mod:`pilot.train.node.node_ties`), always with gloo.

Its store is a file in the agent's private directory, and the ports of gloo and NCCL are bound to the loopback
interface. The process groups are separate from the default group, which is left to the script unless it calls
:func:`~pilot.train.node_mesh.node_mesh`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch

from pilot.core.errors import UserError
from pilot.train.node.devices import own_device
from pilot.train.node.membership import Seat

FABRIC, STORE = "PILOT_NODE_FABRIC", "PILOT_NODE_STORE"
"""The variables with which the agent says how a node's processes sum, and where they meet."""

LOOPBACK = "lo"
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""The variables that tell torch's backends which interface to use and listen on."""

NEVER = timedelta(days=365)
"""No time limit of gloo or NCCL: an agent examines and ends a process that waits too long."""


class Work(Protocol):
    """A pending collective."""

    def is_completed(self) -> bool:
        """Whether it is complete."""

    def wait(self) -> Any:
        """Wait until it is; on a GPU the current stream waits."""


def fabric_of(environment: Mapping[str, str], device: torch.device) -> str:
    """How the processes of a node sum gradients on ``device``: as set by the site, or else ``shared-memory`` on CPUs
    and ``nccl`` on GPUs; :class:`UserError` if that is impossible.
    """
    told = environment.get(FABRIC, "")
    if told == "nccl" and device.type == "cpu":
        raise UserError("the site's node_fabric is nccl and the model is on the CPU: move it to the GPU, or use gloo")
    return told or ("shared-memory" if device.type == "cpu" else "nccl")


class NodeGroup:
    """The group of this process and the others of its node, which meet at the file ``store``; ``fabric``: ``gloo`` or
    ``nccl``.
    """

    def __init__(self, seat: Seat, store: Path, fabric: str) -> None:
        self.rank, self.size = seat.rank, seat.size
        self._gloo = fabric == "gloo"
        self._sums = gloo_group(seat, store, "sums") if self._gloo else _nccl(seat, store)

    def reduce(self, whole: torch.Tensor, own: torch.Tensor) -> Work:
        """``own`` becomes this process's part (number ``rank`` of ``size`` equal ones) of the sum of all ``whole``,
        which are one-dimensional and of equal length. ``whole`` is overwritten. Must be called in the same order on all
        processes.
        """
        if not self._gloo:
            scattered: Work = self._sums._reduce_scatter_base(own, whole)
            return scattered
        return _ThenCopy(
            self._sums.allreduce([whole]), own, whole.chunk(self.size)[self.rank]
        )  # gloo's reduce-scatter takes twice as long

    def spread(self, own: torch.Tensor, whole: torch.Tensor) -> Work:
        """``whole`` becomes the concatenation of all ``own``."""
        work: Work = self._sums._allgather_base(whole, own)
        return work


class _ThenCopy:
    """A collective, followed by a copy of the useful part."""

    def __init__(self, work: Work, target: torch.Tensor, source: torch.Tensor) -> None:
        self._work, self._target, self._source = work, target, source

    def is_completed(self) -> bool:
        """See :class:`Work`."""
        return self._work.is_completed()

    def wait(self) -> None:
        """See :class:`Work`."""
        self._work.wait()
        self._target.copy_(self._source)


def node_mesh() -> Any:
    """The ``DeviceMesh`` of this node's processes, one-dimensional, for ``fully_shard(module, mesh=mesh)``.

    It creates the default process group of ``torch.distributed`` over them, so the script must not create one itself
    (:class:`~pilot.core.errors.UserError`). Under plain ``python``, it is a mesh of one process.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    seat, kind = Seat.of(os.environ), own_device().type
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


def keep_to_loopback() -> None:
    """Bind what gloo and NCCL open in this process to loopback, unless the job's environment says otherwise."""
    for name in INTERFACES:
        os.environ.setdefault(name, LOOPBACK)


def store_of(path: Path, size: int, prefix: str) -> Any:
    """The part ``prefix`` of the node's store."""
    from torch.distributed import FileStore, PrefixStore  # type: ignore[attr-defined]  # its stubs leave them out

    return PrefixStore(prefix, FileStore(str(path), size))


def gloo_group(seat: Seat, store: Path, prefix: str) -> Any:
    """A process group of the node's processes."""
    from torch.distributed import ProcessGroupGloo

    options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # its stubs leave it out
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1", lazy_init=False)]
    options._timeout = NEVER
    return ProcessGroupGloo(store_of(store, seat.size, prefix), seat.rank, seat.size, options)


def _nccl(seat: Seat, store: Path) -> Any:
    from torch.distributed import ProcessGroupNCCL

    keep_to_loopback()
    options = ProcessGroupNCCL.Options()
    options._timeout = NEVER
    return ProcessGroupNCCL(store_of(store, seat.size, "sums"), seat.rank, seat.size, options)
