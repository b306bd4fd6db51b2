"""The interface between the loop of a rank process and MPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pilot.comm.naps import PeerSockets


class Operation(Protocol):
    """A pending operation."""

    def done(self) -> bool:
        """Whether it is complete; makes it progress."""


class Fabric(Protocol):
    """The ranks of one generation. All operations are nonblocking and collective, in the same order on all ranks; sums
    and gathers do not mix, whatever their order.
    """

    rank: int
    size: int

    def sum(self, numbers: NDArray[np.generic]) -> Operation:
        """Sum ``numbers`` over all ranks, in place."""

    def sum_narrow(self, numbers: NDArray[np.float32], kind: str) -> Operation:
        """Sum ``numbers`` in place, sent as ``kind``, one of :data:`pilot.comm.narrow.WIRES`."""

    def gather(self, row: NDArray[np.int64], rows: NDArray[np.int64]) -> Operation:
        """Collect the ``row`` of each rank in ``rows``, shape (size, len(row))."""

    def among(self, ranks: Sequence[int]) -> Fabric:
        """The fabric of some of the ranks, in this order; only these ranks call it. May wait for them."""

    def broadcast(self, block: NDArray[np.uint8], root: int) -> Operation:
        """Copy ``block`` of ``root`` to the others."""

    def barrier(self) -> Operation:
        """Complete when all ranks have called it."""

    def send_next(self, number: int) -> None:
        """Send a number to the next rank (of the last one: the first), without waiting for it."""

    def last_received(self) -> int:
        """The newest number from the previous rank; 0: none."""

    def announce(self, number: int, ranks: Sequence[int]) -> None:
        """Send a number to ``ranks``, without waiting for them."""

    def announced(self) -> int:
        """The highest number that a rank has announced to this one; -1: none."""

    @property
    def sockets(self) -> PeerSockets:
        """The connections on which operations make progress when a peer has sent something."""
