"""MPI behind the interface of ``fabric``. Importing this module does not start MPI; :func:`start` does."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

import mpi4py
import numpy as np
from numpy.typing import NDArray

from pilot.comm.fabric import LONGEST_NAP_S, Fabric, Pending

mpi4py.rc.initialize = False
mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402  (the two settings come first)


class _Request:
    def __init__(self, request: MPI.Request) -> None:
        self._request = request

    def done(self) -> bool:
        return bool(self._request.Test())


class MpiFabric:
    """The ranks of a communicator."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    def sum(self, numbers: NDArray[np.generic]) -> Pending:
        """See :class:`~pilot.comm.fabric.Fabric`."""
        return _Request(self._comm.Iallreduce(MPI.IN_PLACE, numbers, MPI.SUM))

    def gather(self, row: NDArray[np.int64], rows: NDArray[np.int64]) -> Pending:
        """See :class:`~pilot.comm.fabric.Fabric`."""
        return _Request(self._comm.Iallgather(row, rows))

    def among(self, ranks: Sequence[int]) -> Fabric:
        """See :class:`~pilot.comm.fabric.Fabric`."""
        return MpiFabric(self._comm.Create_group(self._comm.Get_group().Incl(list(ranks))))

    def broadcast(self, block: NDArray[np.uint8], root: int) -> Pending:
        """See :class:`~pilot.comm.fabric.Fabric`."""
        return _Request(self._comm.Ibcast(block, root))

    def barrier(self) -> Pending:
        """See :class:`~pilot.comm.fabric.Fabric`."""
        return _Request(self._comm.Ibarrier())


def start() -> MpiFabric:
    """MPI_Init: returns when all ranks of the world have been started."""
    MPI.Init()
    over = MPI.COMM_WORLD.Ibarrier()
    while not over.Test():
        time.sleep(LONGEST_NAP_S)
    _forget_segments()
    return MpiFabric(MPI.COMM_WORLD)


def _forget_segments() -> None:
    """Remove the names of MPICH's shared-memory segments, which every rank has mapped by now.

    A rank process may be killed at any moment, and MPICH removes them only when it ends in good order.
    """
    maps = Path("/proc/self/maps").read_text()
    for name in set(re.findall(r"(/dev/shm/mpich_shm_\S+)", maps)):
        Path(name).unlink(missing_ok=True)


def finish() -> None:
    """MPI_Finalize, after a barrier that all ranks have passed."""
    MPI.Finalize()
