"""What the loop of a rank process needs from MPI, and how it waits: sleeping, never spinning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pilot.comm.channel import Channel, Gone, ready
from pilot.comm.peer_sockets import PeerSockets

FIRST_NAP_S = 10e-6
LONGEST_NAP_S = 1e-3
GROWTH = 1.2
"""The end of a wait of 1 ms is noticed within 0.2 ms; a wait of 10 ms or more costs at most 1,000 checks per second."""


class Operation(Protocol):
    """A pending operation."""

    def done(self) -> bool:
        """Whether it is complete; makes it progress."""


class Fabric(Protocol):
    """The ranks of one generation. All operations are nonblocking and collective, in the same order on all ranks."""

    rank: int
    size: int

    def sum(self, numbers: NDArray[np.generic]) -> Operation:
        """Sum ``numbers`` over all ranks, in place."""

    def sum_narrow(self, numbers: NDArray[np.float32], kind: str) -> Operation:
        """The same with numbers sent as ``kind``, one of :data:`pilot.comm.narrow.KINDS`."""

    def gather(self, row: NDArray[np.int64], rows: NDArray[np.int64]) -> Operation:
        """Collect the ``row`` of each rank in ``rows``, shape (size, len(row))."""

    def among(self, ranks: Sequence[int]) -> Fabric:
        """The fabric of some of the ranks, in this order; only these ranks call it. May wait for them."""

    def broadcast(self, block: NDArray[np.uint8], root: int) -> Operation:
        """Copy ``block`` of ``root`` to the others."""

    def barrier(self) -> Operation:
        """Complete when all ranks have called it."""

    @property
    def sockets(self) -> PeerSockets:
        """On which operations make progress when a peer has sent something."""


def longer(nap_s: float) -> float:
    """How long to sleep after a sleep of ``nap_s`` in which nothing happened."""
    return min(max(nap_s * GROWTH, FIRST_NAP_S), LONGEST_NAP_S)


def wait_for(done: Callable[[], bool], channels: Sequence[Channel]) -> None:
    """Sleep until ``done``; :class:`Gone` if a training process ends meanwhile (they send nothing while they wait)."""
    nap_s = FIRST_NAP_S
    while not done():
        if ready(channels, nap_s):
            raise Gone
        nap_s = longer(nap_s)
