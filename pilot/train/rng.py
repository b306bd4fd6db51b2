"""The random generators that a script may use: torch's (for the CPU and the process's GPU), numpy's and Python's."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from ctypes import string_at
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand

from pilot.train.streams import OfTorch, Stream, of_numpy, of_python

# Both numpy's generator and Python's are an array of 624 words and a position, which each use advances. If it is the
# same after a whole round, all words have changed. So comparing the position and two words suffices.
_SEEN_BYTES = 3 * 4
_NUMPY_SEEN = 622 * 4  # the position follows the words
_PYTHON: Any = random.random.__self__  # type: ignore[attr-defined]  # typeshed calls it a function
_PYTHON_SEEN = object.__basicsize__  # the words follow the position, in the object itself


@dataclass(frozen=True, slots=True)
class Generator:
    """One of the three generators.

    Parameters
    ----------
    seed : sets it
    snapshot : returns a copy of its state, which differs from an earlier one if and only if it was used or set since
    stream : creates a stream, which sets it for each sample
    """

    seed: Callable[[int], object]
    snapshot: Callable[[], object]
    stream: Callable[[], Stream]


_seed_torch = torch.default_generator.manual_seed  # torch.manual_seed queues a call for CUDA, too


def _seed_numpy(seed: int) -> None:
    np.random.seed(seed & 0xFFFFFFFF)


def _torch_snapshot() -> bytes:
    state = torch.default_generator.get_state()
    return string_at(state.data_ptr(), state.numel())


def _numpy_snapshot() -> bytes:
    """Read from its memory, because ``get_state`` takes 100 µs. The normal number that numpy may have in reserve is
    dropped, because drawing it would not change the state.
    """
    generator = mtrand.get_bit_generator()
    mtrand.set_bit_generator(generator)
    return string_at(generator.ctypes.state_address + _NUMPY_SEEN, _SEEN_BYTES)


def _python_snapshot() -> tuple[bytes, object]:
    """Read from its memory, because ``getstate`` creates 625 numbers, in 20 µs."""
    return string_at(id(_PYTHON) + _PYTHON_SEEN, _SEEN_BYTES), _PYTHON.gauss_next


GENERATORS = (
    Generator(_seed_torch, _torch_snapshot, OfTorch),
    Generator(_seed_numpy, _numpy_snapshot, of_numpy),
    Generator(random.seed, _python_snapshot, of_python),
)


def seed_all(seed: int) -> None:
    """Seed all."""
    for generator in GENERATORS:
        generator.seed(seed)
    if (device := _device_module()) is not None:
        device.manual_seed(seed)


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
