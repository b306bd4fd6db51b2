"""The sums of one step, in the loop of a rank process.

=========  ==========================================================================================
waiting    for a doorbell of each training process: its share of the part is in the shared memory (of the control
           vector, the last part: that of the last bucket)
under way  added up on the node (unless its numbers are *per process*), and handed to the pipeline, which sums over
           the nodes
over       the sum is with all training processes of the node
=========  ==========================================================================================

Parts go through these in order; there are ``over`` ≤ ``started`` ≤ all of them.

The sum inside a node is over the arrays of its training processes; the first one's then goes to the network.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pilot.comm.channel import Channel
from pilot.comm.fabric import Fabric, Operation
from pilot.comm.messages import OutOfStep
from pilot.comm.naps import LONGEST_NAP_S, Naps
from pilot.comm.pipeline import Pipeline, SharedPart, put_pieces
from pilot.comm.rails import Rails
from pilot.core.errors import ProtocolError

CONTROL_NAP_S = 0.02
"""The longest nap during a sum of control words alone, which ends with the data of one peer; that wakes us."""

PIECE_BYTES = 256 * 1024
"""So much is added or copied at once: it stays in the cache for all arrays, and MPI can progress in between."""


def add_up(arrays: Sequence[NDArray[np.generic]], drive: Callable[[], object]) -> None:
    """Add the other ``arrays`` to the first, in the order of the ranks; ``drive`` is called after each piece."""
    first, *others = arrays
    if others:
        for piece in _pieces(first):
            for other in others:
                np.add(first[piece], other[piece], out=first[piece])
            drive()


def hand_out(arrays: Sequence[NDArray[np.generic]], drive: Callable[[], object]) -> None:
    """Copy the first of ``arrays`` to the others; ``drive`` is called after each piece."""
    first, *others = arrays
    if others:
        for piece in _pieces(first):
            for other in others:
                other[piece] = first[piece]
            drive()


def _pieces(array: NDArray[np.generic]) -> list[slice]:
    count = PIECE_BYTES // array.itemsize
    return [slice(start, start + count) for start in range(0, len(array), count)]


class StepSum:
    """One step; ``channels`` lead to the training processes of this node, ``rails`` to its other rank processes;
    ``lockstep`` detects ranks that do not sum.
    """

    def __init__(
        self,
        parts: Sequence[SharedPart],
        channels: Sequence[Channel],
        fabric: Fabric,
        rails: Rails,
        lockstep: Lockstep,
    ) -> None:
        self._parts = parts
        self._channels = channels
        self._fabric = fabric
        self._rails = rails
        self._lockstep = lockstep
        self._sums = Pipeline()
        self._started = 0
        self._over = 0
        self._silent = list(channels)  # those that have not rung for the next part yet

    def run(self) -> None:
        """Sum all parts, then ring. All training processes have rung for the first part already. Doorbells are read
        before MPI makes progress.
        """
        self._rails.begin_step()
        self._start_rung()
        naps = Naps(self._fabric.sockets, LONGEST_NAP_S if len(self._parts) > 1 else CONTROL_NAP_S)
        self._lockstep.begins()
        while self._over < len(self._parts):
            if rung := naps.nap(self._expected(), under_way=self._over < self._started):
                self._receive(rung)
            elif self._finish():
                naps.part_over()
            else:
                self._lockstep.sums()
        for channel in self._channels:
            channel.ring()

    def _expected(self) -> Sequence[Channel]:
        """The channels that may have something to read, if only that they are closed."""
        return [*(self._silent if self._started < len(self._parts) else self._channels), *self._rails.channels]

    def _receive(self, rung: Sequence[Channel]) -> None:
        for channel in rung:
            if channel in self._rails.channels:
                self._rails.receive(channel)
                continue
            note, _ = channel.receive()
            if note is not None:
                raise ProtocolError(f"{type(note).__name__} in the middle of a step")
            if self._started == len(self._parts):
                raise ProtocolError("more doorbells than the step has buckets")
            self._silent.remove(channel)
        if not self._silent:
            self._start_rung()

    def _start_rung(self) -> None:
        """Start the sum of a bucket, and of the control vector with the last one."""
        self._start_next()
        if self._started == len(self._parts) - 1:
            self._start_next()

    def _start_next(self) -> None:
        part = self._parts[self._started]
        if not part.per_process:
            add_up(part.arrays, self._sums.done)
        self._rails.start_next()
        put_pieces(self._sums, self._fabric, self._parts, self._started, 0, self._rails.count)
        self._started += 1
        self._silent = list(self._channels)

    def _finish(self) -> bool:
        """Let MPI progress and copy out what is summed by now; returns whether a part was completed."""
        before = self._over
        self._sums.done()
        while self._over < self._rails.over(self._sums.over):
            if not self._parts[self._over].per_process:
                hand_out(self._parts[self._over].arrays, self._sums.done)
            self._over += 1
        return self._over > before


LONG_S = 1.0
"""A shorter operation costs nothing, a longer sum one check in so many seconds, a longer gather one message."""


class Lockstep:
    """Detects ranks out of step: some gather while others sum, so that all would wait for each other for ever.

    Ranks go through the same operations (a step, a gather, a spread), so each has the same number on all. A rank that
    waits in a gather for long sends its number to the next rank; one that waits in a sum for long checks whether it
    received its own. If ranks are out of step, at least one that sums comes after one that gathers. A rank in an open
    round (:mod:`pilot.comm.open_round`) is in no operation: it comes to the same gather later.

    Parameters
    ----------
    fabric : to the others
    channels : to its training processes, which get an :class:`~pilot.comm.messages.OutOfStep`
    """

    def __init__(self, fabric: Fabric, channels: Sequence[Channel]) -> None:
        self._fabric = fabric
        self._channels = channels
        self._number = 0
        self._again_s = math.inf

    def begins(self) -> None:
        """Begin the next operation."""
        self._number += 1
        self._again_s = time.monotonic() + LONG_S

    def gathered(self, operation: Operation) -> bool:
        """Whether ``operation``, the current gather, is complete; makes it progress."""
        if operation.done():
            self._fabric.last_received()  # unread messages would pile up
            return True
        if time.monotonic() >= self._again_s:
            self._again_s = math.inf
            self._fabric.send_next(self._number)
        return False

    def summed(self, operation: Operation) -> bool:
        """Whether ``operation``, the current sum, is complete; makes it progress."""
        if operation.done():
            return True
        self.sums()
        return False

    def sums(self) -> None:
        """Check, while waiting in a sum, whether the previous rank gathers."""
        now_s = time.monotonic()
        if now_s < self._again_s:
            return
        self._again_s = now_s + LONG_S
        if self._fabric.last_received() == self._number:
            self._again_s = math.inf
            previous = (self._fabric.rank - 1) % self._fabric.size
            for channel in self._channels:
                channel.send(OutOfStep(previous * len(self._channels)))
