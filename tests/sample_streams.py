"""What a sample draws, whoever loads it: the generators set by their public functions, to all of its stream."""

from __future__ import annotations

import random
import struct

import numpy as np
import torch

from pilot.train.sampler import mix
from pilot.train.streams import ALL, words


def begin(seed: int, epoch: int, sample: int) -> None:
    """Set all three for ``sample``."""
    torch.set_rng_state(_torch_state(_words(seed, epoch, sample, 1)))
    np.random.set_state(("MT19937", np.roll(_words(seed, epoch, sample, 2), 1), 1, 0, 0.0))
    random.setstate((3, (*np.roll(_words(seed, epoch, sample, 3), 1).tolist(), 1), None))


def _words(seed: int, epoch: int, sample: int, lane: int) -> np.ndarray:
    return words(mix(mix(seed, epoch), lane), np.array([sample], np.uint64), ALL)[0]


def _torch_state(made: np.ndarray) -> torch.Tensor:
    """A seed, how many words are left with one more, whether it is seeded, the next one's place, the words, and normal
    numbers, of which there are none.
    """
    state = struct.pack(f"<QiiQ{ALL}Q", 0, ALL, 1, 0, *made.tolist())
    return torch.frombuffer(bytearray(state.ljust(torch.get_rng_state().numel(), b"\0")), dtype=torch.uint8)
