"""Whether ranks are out of step: some gather while others sum, so that all would wait for each other for ever.

Ranks go through the same rounds (a step, a gather, a spread), so a round has the same number on all. A rank that waits
in a gather for long tells the next rank that number; one that waits in a sum for long looks whether it was told its
own. If ranks are out of step, at least one that sums comes after one that gathers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from pilot.comm.channel import Channel
from pilot.comm.fabric import Fabric, Operation
from pilot.comm.messages import OutOfStep

LONG_S = 1.0
"""A round that is over sooner costs nothing, a longer sum one look in so many seconds, a longer gather one message."""


class Lookout:
    """One rank process's.

    Parameters
    ----------
    fabric : to the others
    channels : to its training processes, which are told
    """

    def __init__(self, fabric: Fabric, channels: Sequence[Channel]) -> None:
        self._fabric = fabric
        self._channels = channels
        self._round = 0
        self._again_s = math.inf

    def begins(self) -> None:
        """The next round begins."""
        self._round += 1
        self._again_s = time.monotonic() + LONG_S

    def gathered(self, operation: Operation) -> bool:
        """Whether ``operation``, the gather of this round, is complete; makes it progress."""
        if operation.done():
            self._fabric.told()  # unread messages would pile up
            return True
        if time.monotonic() >= self._again_s:
            self._again_s = math.inf
            self._fabric.tell_next(self._round)
        return False

    def summed(self, operation: Operation) -> bool:
        """The same for a sum."""
        if operation.done():
            return True
        self.sums()
        return False

    def sums(self) -> None:
        """We wait in a sum."""
        now_s = time.monotonic()
        if now_s < self._again_s:
            return
        self._again_s = now_s + LONG_S
        if self._fabric.told() == self._round:
            self._again_s = math.inf
            previous = (self._fabric.rank - 1) % self._fabric.size
            for channel in self._channels:
                channel.send(OutOfStep(previous * len(self._channels)))
