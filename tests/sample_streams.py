"""What a sample draws, whichever process loads it: the generators set through their public functions, for its whole
stream.
"""

from __future__ import annotations

import random
import struct

import numpy as np
import torch

from pilot.train.data.sampler import mix
from pilot.train.data.streams import ALL, Sections, Words


def begin(seed: int, epoch: int, position: int) -> None:
    """Set all three for the sample at ``position`` of an epoch."""
    torch.set_rng_state(_torch_state(_words(seed, epoch, position, 1)))
    np.random.set_state(("MT19937", np.roll(_words(seed, epoch, position, 2), 1), 1, 0, 0.0))
    random.setstate((3, (*np.roll(_words(seed, epoch, position, 3), 1).tolist(), 1), None))


def words(sections: Sections, start: int, first: int, samples: int, count: int) -> Words:
    """The first ``count`` words of the streams of ``samples`` samples."""
    rows = np.empty((samples, count), np.uint32)
    sections.fill(rows, start, first)
    return rows


def _words(seed: int, epoch: int, position: int, lane: int) -> Words:
    return words(Sections(), mix(mix(seed, epoch), lane), position, 1, ALL)[0]


def _torch_state(made: Words) -> torch.Tensor:
    """A seed, the number of words left plus one, whether it is seeded, the position of the next one, the words, and
    cached normal numbers (none).
    """
    state = struct.pack(f"<QiiQ{ALL}Q", 0, ALL, 1, 0, *made.tolist())
    return torch.frombuffer(bytearray(state.ljust(torch.get_rng_state().numel(), b"\0")), dtype=torch.uint8)
