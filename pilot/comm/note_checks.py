"""Checks what training processes request of their rank process, which accesses their memory at addresses they name.

Each function refuses with :class:`~pilot.core.errors.ProtocolError`, which ends the rank process before it reads or
writes a wrong address; a new generation is formed then.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pilot.comm.arena import Arena
from pilot.comm.messages import Attach, BucketPart, Spread
from pilot.comm.narrow import WIRES
from pilot.core.errors import ProtocolError

SUMMED = ("float32", "float64")
"""The types in which gradients and the control vector are summed."""


def views(note: Attach, fd: int | None) -> list[NDArray[np.generic]]:
    """The parts of the arena with the descriptor ``fd``, which is closed."""
    if fd is None:
        raise ProtocolError("Attach arrived without a descriptor")
    arena = Arena.received(fd)
    arena.close_fd()
    if not note.parts:
        raise ProtocolError("a step has no parts")
    return [_view(arena, part) for part in note.parts]


def _view(arena: Arena, part: BucketPart) -> NDArray[np.generic]:
    if part.dtype not in SUMMED or (part.wire and (part.wire not in WIRES or part.dtype != "float32")):
        raise ProtocolError(f"numbers of type {part.dtype!r} cannot be sent as {part.wire or part.dtype!r}")
    end = part.offset + part.count * np.dtype(part.dtype).itemsize
    if part.count < 1 or end > arena.size:
        raise ProtocolError(
            f"{part.count} numbers from byte {part.offset} on do not fit in an arena of {arena.size} bytes"
        )
    return np.frombuffer(arena.memory, part.dtype, part.count, part.offset)


def one_row(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """The rows of a node's processes, concatenated."""
    if len({len(row) for row in rows}) != 1 or not rows[0]:
        raise ProtocolError("the rows to gather are empty, or differ in length")
    return np.array(rows, np.int64).ravel()


def check_spread(notes: Sequence[Spread], fds: Sequence[int | None], first: int, size: int) -> None:
    """Check that all processes of a node request the same spread among ``size`` ranks; only the root, if here, sends
    bytes.

    ``first`` is the rank of the node's first process.
    """
    root, takers = notes[0].root, notes[0].takers
    if any((note.root, note.takers) != (root, takers) for note in notes):
        raise ProtocolError("the training processes of a node want a state from or for different ranks")
    if not takers or max(root, *takers) >= size or len(set(takers)) < len(takers):
        raise ProtocolError(f"a state cannot go from rank {root} to {takers} of {size}")
    for rank, (note, fd) in enumerate(zip(notes, fds, strict=True), first):
        if (fd is not None) != (rank == root) or (note.size > 0) != (rank == root):
            raise ProtocolError(f"rank {rank} of a state from rank {root} has {note.size} bytes")


def source(fd: int, size: int) -> Arena:
    """The memory with the ``size`` bytes to spread."""
    arena = Arena.received(fd)
    if size > arena.size:
        arena.close_fd()
        raise ProtocolError(f"{size} bytes do not fit in an arena of {arena.size}")
    return arena


def no_descriptors(fds: Sequence[int | None]) -> None:
    """Check that there is no descriptor: only ``Attach`` and ``Spread`` have one."""
    if any(fd is not None for fd in fds):
        raise ProtocolError("a descriptor arrived with a note that needs none")
