"""The random generators that a script may use: torch's (for the CPU and the process's GPU), numpy's and Python's."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand

from pilot.train.data.generator_memory import (
    ALL,
    NUMPY_NORMAL,
    PYTHON,
    PYTHON_ADDRESS,
    TORCH_ADDRESS,
    TORCH_HEAD,
    TORCH_NORMALS,
    TORCH_NORMALS_AT,
    numpy_address,
    torch_words,
    view,
)
from pilot.train.data.streams import OfPython, Stream, of_numpy, of_torch

OF_ALL_RANKS, OF_A_TURN, OF_AN_END = 1 << 62, 1 << 61, 1 << 60
"""Used when seeding the generators alike on all ranks, instead of a micro-batch's number and of a rank: after a step's
sums, at the beginning of a turn of the loop, and at the end of an epoch.
"""

# All three are an array of 624 words and a position, which each use advances. If it is the same after a whole round,
# all words have changed. So comparing the position and some words beside it suffices.
_SEEN_BYTES = 3 * 4
_NUMPY_SEEN = (ALL - 2) * 4
_PYTHON_SEEN = view(PYTHON_ADDRESS, _SEEN_BYTES)
_TORCH_SEEN = None if TORCH_ADDRESS is None else view(TORCH_ADDRESS, TORCH_HEAD.size + _SEEN_BYTES)
_TORCH_NORMALS = None if TORCH_ADDRESS is None else view(TORCH_ADDRESS + TORCH_NORMALS_AT, TORCH_NORMALS.size)
_TORCH_WORDS = None if TORCH_ADDRESS is None else view(TORCH_ADDRESS + TORCH_HEAD.size, 4 * ALL)
_PYTHON_STATE = view(PYTHON_ADDRESS, 4 + 4 * ALL)
_AT_END = struct.pack("I", ALL)
"""The position after the last word: the next use regenerates all."""


@dataclass(frozen=True, slots=True)
class Generator:
    """One of the three generators.

    Parameters
    ----------
    snapshot : returns a copy of its state, which differs from an earlier one if and only if it was used or set since
    stream : creates a stream, which sets it for each sample
    """

    snapshot: Callable[[], object]
    stream: Callable[[], Stream]


def _torch_snapshot() -> tuple[bytes, bytes]:
    if _TORCH_SEEN is None or _TORCH_NORMALS is None:
        return torch.default_generator.get_state().numpy().tobytes(), b""
    return _TORCH_SEEN.raw, _TORCH_NORMALS.raw


def _numpy_snapshot() -> tuple[bytes, object]:
    """Read from its memory, because ``get_state`` takes 100 µs. If it is not known whether numpy keeps a normal number,
    that is dropped, because drawing it would not change the state.
    """
    if NUMPY_NORMAL is None:
        mtrand.set_bit_generator(mtrand.get_bit_generator())
    return view(numpy_address() + _NUMPY_SEEN, _SEEN_BYTES).raw, NUMPY_NORMAL and NUMPY_NORMAL.raw


def _python_snapshot() -> tuple[bytes, object]:
    """Read from its memory, because ``getstate`` creates 625 numbers, in 20 µs."""
    return _PYTHON_SEEN.raw, PYTHON.gauss_next


GENERATORS = (
    Generator(_torch_snapshot, of_torch),
    Generator(_numpy_snapshot, of_numpy),
    Generator(_python_snapshot, OfPython),
)


def positions() -> tuple[object, ...]:
    """Of all generators: the same as before if and only if nothing was drawn in between."""
    device = _device_module()
    of_device = device.get_rng_state().numpy().tobytes() if device is not None else b""
    return (*[generator.snapshot() for generator in GENERATORS], of_device)


def seed_all(seed: int) -> None:
    """Seed all. numpy's and Python's get words that torch's is seeded with, which takes a third of the time of their
    own ways.
    """
    _set_python(_words_of_torch(seed + 2))
    _set_numpy(_words_of_torch(seed + 1))
    _seed_torch(seed)
    if (device := _device_module()) is not None:
        device.manual_seed(seed)


_seed_torch = torch.default_generator.manual_seed  # torch.manual_seed queues a call for CUDA, too


def _words_of_torch(seed: int) -> bytes:
    _seed_torch(seed)
    return _TORCH_WORDS.raw if _TORCH_WORDS is not None else torch_words(torch.default_generator.get_state())


def _set_numpy(words: bytes) -> None:
    if NUMPY_NORMAL is None:
        np.random.set_state(("MT19937", np.frombuffer(words, np.uint32), ALL, 0, 0.0))
    else:
        view(numpy_address(), len(words) + len(_AT_END)).raw = words + _AT_END
        NUMPY_NORMAL.raw = bytes(len(NUMPY_NORMAL))


def _set_python(words: bytes) -> None:
    _PYTHON_STATE.raw = _AT_END + words
    PYTHON.gauss_next = None


def capture() -> dict[str, Any]:
    """The states of all, as arrays and numbers; including the GPU's if the script uses one."""
    device = _device_module()
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    version, internal, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "numpy": {"kind": kind, "keys": keys, "position": position, "has_gauss": has_gauss, "gauss": gauss},
        "python": {"version": version, "internal": np.array(internal, np.int64), "gauss_next": gauss_next},
    } | ({"device": device.get_rng_state()} if device is not None else {})


def restore(state: Mapping[str, Any]) -> None:
    """Restore a result of :func:`capture`."""
    torch.set_rng_state(state["torch"].clone())
    if (device := _device_module()) is not None and "device" in state:
        device.set_rng_state(state["device"].clone())
    numpy, python = state["numpy"], state["python"]
    np.random.set_state(tuple(numpy[key] for key in ("kind", "keys", "position", "has_gauss", "gauss")))
    random.setstate((python["version"], tuple(python["internal"].tolist()), python["gauss_next"]))


def _device_module() -> Any:
    """``torch.cuda`` or the like, whose current device is this process's; None: the script has not used one so far."""
    accelerator = torch.accelerator.current_accelerator()
    module: Any = torch.get_device_module(accelerator) if accelerator is not None else None
    return module if module is not None and module.is_initialized() else None


@contextmanager
def untouched() -> Iterator[None]:
    """What is drawn meanwhile leaves the generators as they were."""
    state = capture()
    try:
        yield
    finally:
        restore(state)


def own_state(value: Any) -> Any:
    """The state of a generator that a script or an optimizer created; any other value is its own state."""
    match value:
        case random.Random():
            return value.getstate()
        case torch.Generator():
            return value.get_state()
        case np.random.Generator():
            return value.bit_generator.state
        case np.random.RandomState():
            return value.get_state(legacy=False)
    return value


def with_state(value: Any, state: Any) -> Any:
    """``value`` with a result of :func:`own_state`: the same generator, or ``state`` itself."""
    match value:
        case random.Random():
            value.setstate(state)
        case torch.Generator() | np.random.RandomState():
            value.set_state(state)
        case np.random.Generator():
            value.bit_generator.state = state
        case torch.Tensor() if isinstance(state, torch.Tensor):
            return state.to(value.device)
        case _:
            return state
    return value
