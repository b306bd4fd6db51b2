"""A part of a step in the memory of a node's training processes, and which rail sums which of its pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pilot.comm.fabric import Fabric
from pilot.comm.messages import BucketPart
from pilot.comm.pipeline import Pipeline, pieces


@dataclass(frozen=True, slots=True)
class SharedPart:
    """One part: the array of each training process, and the type in which it is sent (empty: unchanged). ``apart``:
    they are not added up on the node.
    """

    arrays: tuple[NDArray[np.generic], ...]
    wire: str
    apart: bool = False

    def summed(self) -> tuple[NDArray[np.generic], ...]:
        """The arrays that are summed over the nodes."""
        return self.arrays if self.apart else self.arrays[:1]


def shared_parts(arenas: Sequence[Sequence[NDArray[np.generic]]], parts: Sequence[BucketPart]) -> list[SharedPart]:
    """``parts`` of the arenas of all training processes."""
    return [SharedPart(tuple(arrays), part.wire, part.apart) for *arrays, part in zip(*arenas, parts, strict=True)]


def put_pieces(sums: Pipeline, fabric: Fabric, parts: Sequence[SharedPart], number: int, rail: int, rails: int) -> None:
    """Begin to sum ``rail``'s pieces of part ``number``.

    Pieces are assigned to the rails in turn, and the shares of local rank i to rail i (modulo their number), so that
    those of one GPU use one interface. The last part, the control vector, belongs to rail 0.
    """
    part = parts[number]
    arrays = part.summed()
    first = (len(parts) - 1 - number) * len(arrays)
    turns = [
        (turn, piece) for begin, array in enumerate(arrays, first) for turn, piece in enumerate(pieces(array), begin)
    ]
    own = [piece for turn, piece in turns if turn % rails == rail]
    if part.wire:
        sums.put(partial(fabric.sum_narrow, piece.view(np.float32), part.wire) for piece in own)
    else:
        sums.put(partial(fabric.sum, piece) for piece in own)
