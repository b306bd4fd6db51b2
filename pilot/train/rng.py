"""The random generators that a script may use: torch's (CPU), numpy's and Python's."""

from __future__ import annotations

import _random
import random
from collections.abc import Callable, Mapping
from ctypes import string_at
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand

_MT19937_BYTES = 624 * 4 + 4
"""Of numpy's struct: the words and the position."""
_PYTHON_STATE = slice(object.__basicsize__, _random.Random.__basicsize__)
"""Where CPython's generator keeps its own, within the object."""


@dataclass(frozen=True, slots=True)
class Generator:
    """One of the three.

    Parameters
    ----------
    seed : sets it
    snapshot : a copy of its state, which differs from an earlier one if and only if it was used or set since
    """

    seed: Callable[[int], object]
    snapshot: Callable[[], object]


def _seed_torch(seed: int) -> None:
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also queue a call for CUDA each time


def _seed_numpy(seed: int) -> None:
    np.random.seed(seed & 0xFFFFFFFF)


def _torch_snapshot() -> bytes:
    return torch.default_generator.get_state().numpy().tobytes()


def _numpy_snapshot() -> bytes:
    """From its memory: ``get_state`` takes 100 µs. The normal number that numpy may hold back is dropped: taking that
    one would change nothing here.
    """
    generator = mtrand.get_bit_generator()
    mtrand.set_bit_generator(generator)
    return string_at(generator.ctypes.state_address, _MT19937_BYTES)


def _python_snapshot() -> tuple[bytes, object]:
    """From its memory: ``getstate`` makes 625 numbers, in 20 µs."""
    generator: Any = random.random.__self__  # type: ignore[attr-defined]
    state = string_at(id(generator) + _PYTHON_STATE.start, _PYTHON_STATE.stop - _PYTHON_STATE.start)
    return state, generator.gauss_next


GENERATORS = (
    Generator(_seed_torch, _torch_snapshot),
    Generator(_seed_numpy, _numpy_snapshot),
    Generator(random.seed, _python_snapshot),
)


def seed_all(seed: int) -> None:
    """Seed all three."""
    for generator in GENERATORS:
        generator.seed(seed)


def capture() -> dict[str, Any]:
    """The states of all three, as arrays and numbers."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    version, internal, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "numpy": {"kind": kind, "keys": keys, "position": position, "has_gauss": has_gauss, "gauss": gauss},
        "python": {"version": version, "internal": np.array(internal, np.int64), "gauss_next": gauss_next},
    }


def restore(state: Mapping[str, Any]) -> None:
    """Set what :func:`capture` gave."""
    torch.set_rng_state(state["torch"].clone())
    numpy, python = state["numpy"], state["python"]
    np.random.set_state(tuple(numpy[key] for key in ("kind", "keys", "position", "has_gauss", "gauss")))
    random.setstate((python["version"], tuple(python["internal"].tolist()), python["gauss_next"]))
