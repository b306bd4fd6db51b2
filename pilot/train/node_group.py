"""The node's own communicator: the training processes of one worker live and die together, so between them the ordinary
collectives of ``torch.distributed`` do the work, through all generations.

What is said with it is of two kinds. *Collectives* move gradients (:meth:`NodeGroup.reduce`, :meth:`NodeGroup.spread`),
by gloo on CPUs and by NCCL on GPUs. *Words* are numbers by which the processes of a node stay in step
(:mod:`pilot.train.node_ties`), always by gloo.

Its store is a file in the agent's private directory, and what gloo and NCCL open is bound to the loopback interface.
The process groups are objects of their own, not the default group: that stays the script's, unless it asks for
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
from pilot.train.membership import Seat

FABRIC, STORE = "PILOT_NODE_FABRIC", "PILOT_NODE_STORE"
"""The variables with which the agent says how a node's processes sum, and where they meet."""

LOOPBACK = "lo"
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""What tells torch's backends which interface to use, and to listen on."""

NEVER = timedelta(days=365)
"""Who waits too long is looked at by its agent and ended, not by a limit of gloo or NCCL."""


class Work(Protocol):
    """A collective under way."""

    def is_completed(self) -> bool:
        """Whether it is over."""

    def wait(self) -> Any:
        """Until it is; on a GPU the current stream waits."""


def fabric_of(environment: Mapping[str, str], device: torch.device, size: int) -> str:
    """How the ``size`` processes of a node sum gradients that are on ``device``: what the site says, else
    ``shared-memory`` on CPUs, and ``nccl`` on GPUs; :class:`UserError` where that cannot be.
    """
    told = environment.get(FABRIC, "")
    if size == 1 or STORE not in environment:
        return "shared-memory"
    if told == "nccl" and device.type == "cpu":
        raise UserError("the site's node_fabric is nccl and the model is on the CPU: move it to the GPU, or use gloo")
    return told or ("shared-memory" if device.type == "cpu" else "nccl")


class NodeGroup:
    """Of this process with the others of its node.

    Parameters
    ----------
    seat : of this process
    store : the file where they meet
    fabric : ``gloo`` or ``nccl``
    """

    def __init__(self, seat: Seat, store: Path, fabric: str) -> None:
        self.rank, self.size = seat.rank, seat.size
        self._gloo = fabric == "gloo"
        self._sums = _gloo(seat, store, "sums") if self._gloo else _nccl(seat, store)

    def reduce(self, whole: torch.Tensor, own: torch.Tensor) -> Work:
        """``own`` becomes this process's part (number ``rank`` of ``size`` equal ones) of the sum of all ``whole``,
        which are of one dimension and equally long. ``whole`` is overwritten. On all processes in the same order.
        """
        if not self._gloo:
            scattered: Work = self._sums._reduce_scatter_base(own, whole)
            return scattered
        return _ThenCopy(
            self._sums.allreduce([whole]), own, whole.chunk(self.size)[self.rank]
        )  # a reduce-scatter of gloo takes twice as long

    def spread(self, own: torch.Tensor, whole: torch.Tensor) -> Work:
        """``whole`` becomes all of ``own``, one after the other."""
        work: Work = self._sums._allgather_base(whole, own)
        return work


class _ThenCopy:
    """A collective, and a copy of what is of use of it."""

    def __init__(self, work: Work, target: torch.Tensor, source: torch.Tensor) -> None:
        self._work, self._target, self._source = work, target, source

    def is_completed(self) -> bool:
        """See :class:`Work`."""
        return self._work.is_completed()

    def wait(self) -> None:
        """See :class:`Work`."""
        self._work.wait()
        self._target.copy_(self._source)


def keep_to_loopback() -> None:
    """For what gloo and NCCL open in this process from here on, unless the job says otherwise."""
    for name in INTERFACES:
        os.environ.setdefault(name, LOOPBACK)


def store_of(path: Path, size: int, prefix: str) -> Any:
    """The part ``prefix`` of the node's store."""
    from torch.distributed import FileStore, PrefixStore  # type: ignore[attr-defined]  # its stubs leave them out

    return PrefixStore(prefix, FileStore(str(path), size))


def words_group(seat: Seat, store: Path) -> Any:
    """A process group for words."""
    return _gloo(seat, store, "words")


def _gloo(seat: Seat, store: Path, prefix: str) -> Any:
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
