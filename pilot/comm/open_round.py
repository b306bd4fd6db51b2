"""The end of a round of seldom-synchronised training, which one node begins and the others hear of.

While a round is open, training processes train by themselves and need nothing of MPI. The first node whose processes
gather says so to the ranks 1, 2, 4, 8, … after it. Each rank passes this on once, to those after itself, and has its
training processes end the round after their current inner step. So it reaches n ranks in at most log2(n) messages one
after the other, over connections that MPI's barrier has opened before.
"""

from __future__ import annotations

from collections.abc import Sequence

from pilot.comm.channel import Channel, ready
from pilot.comm.fabric import Fabric
from pilot.comm.messages import Closing, Open
from pilot.comm.naps import Naps
from pilot.core.errors import ProtocolError

LONGEST_NAP_S = 0.02
"""Data from a peer wakes us earlier. 50 checks a second take less than 1% of a core."""


class OpenRound:
    """The round in which the training processes at the other ends of ``channels`` are, if any."""

    def __init__(self, fabric: Fabric, channels: Sequence[Channel]) -> None:
        self._fabric = fabric
        self._channels = channels
        self._number: int | None = None
        """The open round, until another node is known to have ended it, or ours has."""

    def open(self, notes: Sequence[Open]) -> None:
        """The node's training processes begin the round of ``notes``."""
        if len({(note.round, note.ends) for note in notes}) > 1:
            raise ProtocolError(f"the training processes of a node open different rounds: {notes}")
        self._number = notes[0].round if self._fabric.size > 1 else None
        self._ends = notes[0].ends
        self._naps = Naps(self._fabric.sockets, LONGEST_NAP_S)

    def ready(self, silent: Sequence[Channel]) -> list[Channel]:
        """Wait for channels of ``silent`` that have something to receive, or are closed, and return them. If another
        node ends the round meanwhile, all training processes are notified.
        """
        while self._number is not None:
            if rung := self._naps.nap(silent, under_way=True):
                return rung
            if self._fabric.announced() >= self._number:
                for channel in self._channels:
                    channel.send(Closing(self._number))
                self.close(heard=True)
        return ready(silent)

    def close(self, *, heard: bool = False) -> None:
        """The round ends, if it is open: tell the next nodes, if this was ``heard`` or ends it for all."""
        if self._number is not None and (heard or self._ends):
            distances = (1 << power for power in range((self._fabric.size - 1).bit_length()))
            self._fabric.announce(self._number, [(self._fabric.rank + n) % self._fabric.size for n in distances])
        self._number = None
