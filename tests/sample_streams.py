"""What a sample draws, whichever process loads it."""

from __future__ import annotations

import random

import numpy as np
import torch

from pilot.train.data.sampler import mix

WORD = 0xFFFFFFFF


def begin(seed: int, epoch: int, position: int) -> None:
    """Set all three generators for the sample at ``position`` of an epoch."""
    torch.manual_seed(number(seed, epoch, position, 1))
    np.random.seed(number(seed, epoch, position, 2))
    random.seed(number(seed, epoch, position, 3))


def number(seed: int, epoch: int, position: int, lane: int) -> int:
    """The seed of one of them."""
    key = mix(seed, epoch, lane)
    return _scattered(_scattered(position + key) + (key >> 32))


def _scattered(word: int) -> int:
    word &= WORD
    word = (word ^ word >> 16) * 0x7FEB352D & WORD
    word = (word ^ word >> 15) * 0x846CA68B & WORD
    return word ^ word >> 16
