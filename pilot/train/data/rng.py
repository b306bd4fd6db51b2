"""The random generators that a script may use: torch's (for the CPU and the process's GPU), numpy's and Python's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand

from pilot.core.errors import UserError

OF_ALL_RANKS, OF_A_TURN, OF_AN_END = 1 << 62, 1 << 61, 1 << 60
"""Parts of seeds that are the same on all ranks, in place of the rank and the micro-batch: after a step's sums, at the
beginning of a turn of the loop, and at the end of an epoch.
"""

_WATCHED = 0x5DEECE66
"""The seed by which use of a generator is detected: reading numpy's and Python's states takes 20 to 100 µs."""

_seed_torch = torch.default_generator.manual_seed  # torch.manual_seed queues a call for CUDA, too


@dataclass(frozen=True, slots=True)
class Generator:
    """One of the global generators: torch's, numpy's or Python's."""

    lane: int  #: a number by which its seeds differ from those of the other generators
    seed: Callable[[int], object]  #: seeds it with a number of 32 bits
    peek: Callable[[], object]  #: returns its state or next number; this may be a draw
    unused: object  #: the result of ``peek`` if it was not used since :meth:`watch`

    def watch(self) -> None:
        """Begin to detect use of the generator."""
        self.seed(_WATCHED)

    def was_used(self) -> bool:
        """Return whether the generator was drawn from or seeded since :meth:`watch`."""
        return self.peek() != self.unused


def _state_of(generator: torch.Generator) -> bytes:
    return generator.get_state().numpy().tobytes()


GENERATORS = (
    Generator(
        1, _seed_torch, lambda: _state_of(torch.default_generator), _state_of(torch.Generator().manual_seed(_WATCHED))
    ),
    Generator(2, np.random.seed, lambda: np.random.random_sample(), np.random.RandomState(_WATCHED).random_sample()),
    Generator(3, random.seed, random.random, random.Random(_WATCHED).random()),
)


def positions() -> tuple[object, ...]:
    """Return the states of all generators in a form to compare: equal if and only if nothing was drawn in between."""
    device = _device_module()
    of_device = device.get_rng_state().numpy().tobytes() if device is not None else b""
    of_numpy: Any = np.random.get_state()
    return _state_of(torch.default_generator), of_numpy[1].tobytes(), of_numpy[2:], random.getstate(), of_device


def seed_all(seed: int) -> None:
    """Seed all generators; :class:`UserError` if numpy's was replaced."""
    if not isinstance(generator := mtrand.get_bit_generator(), np.random.MT19937):
        raise UserError(
            f"numpy's global generator is {type(generator).__name__} (by numpy.random.set_bit_generator), whose state"
            " cannot be sent to other nodes; leave it MT19937, and use your own numpy.random.Generator beside it"
        )
    random.seed(seed)
    np.random.seed(seed + 1 & 0xFFFFFFFF)
    _seed_torch(seed)
    if (device := _device_module()) is not None:
        device.manual_seed(seed)


def capture() -> dict[str, Any]:
    """Return the states of all generators, as arrays and numbers; including the GPU's if the script uses one."""
    device = _device_module()
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    version, internal, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "numpy": {"kind": kind, "keys": keys, "position": position, "has_gauss": has_gauss, "gauss": gauss},
        "python": {"version": version, "internal": np.array(internal, np.int64), "gauss_next": gauss_next},
    } | ({"device": device.get_rng_state()} if device is not None else {})


def restore(state: Mapping[str, Any]) -> None:
    """Set the states of all generators to a result of :func:`capture`."""
    torch.set_rng_state(state["torch"].clone())
    if (device := _device_module()) is not None and "device" in state:
        device.set_rng_state(state["device"].clone())
    numpy, python = state["numpy"], state["python"]
    np.random.set_state(tuple(numpy[key] for key in ("kind", "keys", "position", "has_gauss", "gauss")))
    random.setstate((python["version"], tuple(python["internal"].tolist()), python["gauss_next"]))


def _device_module() -> Any:
    """Return ``torch.cuda`` or a similar module; None if the script has not used a GPU so far."""
    accelerator = torch.accelerator.current_accelerator()
    module: Any = torch.get_device_module(accelerator) if accelerator is not None else None
    return module if module is not None and module.is_initialized() else None


@contextmanager
def untouched() -> Iterator[None]:
    """Restore the states of all generators afterwards."""
    state = capture()
    try:
        yield
    finally:
        restore(state)


def own_state(value: Any) -> Any:
    """Return the state of a generator that a script or an optimizer created; any other value is its own state."""
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
    """Set a generator to a result of :func:`own_state` and return it; for any other value return ``state``."""
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
