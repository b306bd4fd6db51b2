"""MPI behind the interface of ``fabric``. Importing this module does not start MPI; :func:`start` does."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

import mpi4py
import numpy as np
from numpy.typing import NDArray

from pilot.comm.fabric import Fabric, Operation
from pilot.comm.naps import LONGEST_NAP_S, PeerSockets
from pilot.comm.narrow import Floats, packed, unpacked

mpi4py.rc.initialize = False
mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402  # MPI reads the two settings when it is imported


class _Request:
    def __init__(self, request: MPI.Request) -> None:
        self._request = request

    def done(self) -> bool:
        return bool(self._request.Test())


class _NarrowSum:
    """A sum whose numbers are sent in fewer bits: each rank sums its share of them in float32, then all get all shares.

    This moves as many bytes as a ring, rounds each number once before and once after the sum, and gives the same bits
    on all ranks.
    """

    def __init__(self, there: MPI.Intracomm, back: MPI.Intracomm, numbers: Floats, kind: str) -> None:
        self._numbers, self._kind, self._back = numbers, kind, back
        self._rows = packed(numbers, there.Get_size(), kind)
        self._shares = np.empty_like(self._rows)
        self._request = there.Ialltoall(self._rows.view(np.uint8), self._shares.view(np.uint8))
        self._coming_back = False

    def done(self) -> bool:
        if not self._request.Test():
            return False
        if self._coming_back:
            self._numbers[:] = unpacked(self._rows, self._kind).reshape(-1)[: len(self._numbers)]
            return True
        self._total = packed(unpacked(self._shares, self._kind).sum(axis=0), 1, self._kind)
        self._request = self._back.Iallgather(self._total.view(np.uint8), self._rows.view(np.uint8))
        self._coming_back = True
        return False


class MpiFabric:
    """The ranks of a communicator. ``aside``: another one of the same ranks, for what must not mix with the sums."""

    sockets = PeerSockets()
    """The connections of the process, whichever communicator uses them."""

    def __init__(self, comm: MPI.Intracomm, aside: MPI.Intracomm | None = None) -> None:
        self._comm = comm
        self._aside = aside
        self._received = 0
        self._sending = MPI.REQUEST_NULL
        self._announced = -1
        self._announcing: list[MPI.Request] = []
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    def sum(self, numbers: NDArray[np.generic]) -> Operation:
        """See :class:`~pilot.comm.fabric.Fabric`."""
        return _Request(self._comm.Iallreduce(MPI.IN_PLACE, numbers, MPI.SUM))

    def sum_narrow(self, numbers: NDArray[np.float32], kind: str) -> Operation:
        """See :class:`~pilot.comm.fabric.Fabric`."""
        assert self._aside is not None, "only the fabric of all ranks sums"
        return _NarrowSum(self._comm, self._aside, numbers, kind)

    def gather(self, row: NDArray[np.int64], rows: NDArray[np.int64]) -> Operation:
        """See :class:`~pilot.comm.fabric.Fabric`."""
        assert self._aside is not None, "only the fabric of all ranks gathers"
        return _Request(self._aside.Iallgather(row, rows))

    def among(self, ranks: Sequence[int]) -> Fabric:
        """See :class:`~pilot.comm.fabric.Fabric`."""
        return MpiFabric(self._comm.Create_group(self._comm.Get_group().Incl(list(ranks))))

    def broadcast(self, block: NDArray[np.uint8], root: int) -> Operation:
        """See :class:`~pilot.comm.fabric.Fabric`."""
        return _Request(self._comm.Ibcast(block, root))

    def barrier(self) -> Operation:
        """See :class:`~pilot.comm.fabric.Fabric`."""
        return _Request(self._comm.Ibarrier())

    def send_next(self, number: int) -> None:
        """See :class:`~pilot.comm.fabric.Fabric`."""
        if self._sending.Test():
            self._sending = self._comm.Isend(np.array([number], np.int64), (self.rank + 1) % self.size)

    def last_received(self) -> int:
        """See :class:`~pilot.comm.fabric.Fabric`."""
        number = np.empty(1, np.int64)
        while self._comm.Iprobe((self.rank - 1) % self.size):
            self._comm.Recv(number, (self.rank - 1) % self.size)
            self._received = int(number[0])
        return self._received

    def announce(self, number: int, ranks: Sequence[int]) -> None:
        """See :class:`~pilot.comm.fabric.Fabric`."""
        assert self._aside is not None, "only the fabric of all ranks announces"
        self._announcing = [request for request in self._announcing if not request.Test()]
        self._announcing += [self._aside.Isend(np.array([number], np.int64), rank) for rank in ranks]

    def announced(self) -> int:
        """See :class:`~pilot.comm.fabric.Fabric`."""
        assert self._aside is not None, "only the fabric of all ranks announces"
        number = np.empty(1, np.int64)
        while self._aside.Iprobe():
            self._aside.Recv(number)
            self._announced = max(self._announced, int(number[0]))
        return self._announced


def start(rail: int = 0, rails: int = 1) -> MpiFabric:
    """Call MPI_Init, which returns when all ranks of the world have started; returns the fabric of this rank's rail."""
    MPI.Init()
    over = MPI.COMM_WORLD.Ibarrier()
    while not over.Test():
        time.sleep(LONGEST_NAP_S)
    _forget_segments()
    # The second half of a narrow sum begins when a rank notices the end of the first, possibly between other sums, and
    # a script may gather on one rank while others sum. Collectives of one communicator must begin in the same order on
    # all ranks, so these have a communicator of their own.
    world = MPI.COMM_WORLD
    ranks = MPI.Intracomm(world.Split(rail, world.Get_rank())) if rails > 1 else world
    return MpiFabric(ranks, ranks.Dup())


def _forget_segments() -> None:
    """Unlink MPICH's shared-memory segments, which every rank has mapped by now.

    A rank process may be killed at any moment, and MPICH removes them only when it exits normally.
    """
    maps = Path("/proc/self/maps").read_text()
    for name in set(re.findall(r"(/dev/shm/mpich_shm_\S+)", maps)):
        Path(name).unlink(missing_ok=True)


def finish() -> None:
    """Call MPI_Finalize, after a barrier of all ranks."""
    MPI.Finalize()
