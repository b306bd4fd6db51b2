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
"""Used when seeding the generators alike on all ranks, instead of a micro-batch's number and of a rank: after a step's
sums, at the beginning of a turn of the loop, and at the end of an epoch.
"""

_WATCHED = 0x5DEECE66
"""Seeds a generator to see whether it is used: numpy's and Python's states take 20 to 100 µs to read."""

_seed_torch = torch.default_generator.manual_seed  # torch.manual_seed queues a call for CUDA, too


@dataclass(frozen=True, slots=True)
class Generator:
    """One of the three generators."""

    lane: int  #: its seeds for a sample differ from those of the others by this
    seed: Callable[[int], object]  #: sets it by a number of 32 bits
    look: Callable[[], object]  #: returns what it has next; this may be a draw
    unused: object  #: what ``look`` returns if it was not used since :meth:`watch`

    def watch(self) -> None:
        """Begin to see whether it is used."""
        self.seed(_WATCHED)

    def was_used(self) -> bool:
        """Since :meth:`watch`, drawn from or set."""
        return self.look() != self.unused


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
    """Of all generators: the same as before if and only if nothing was drawn in between."""
    device = _device_module()
    of_device = device.get_rng_state().numpy().tobytes() if device is not None else b""
    of_numpy: Any = np.random.get_state()
    return _state_of(torch.default_generator), of_numpy[1].tobytes(), of_numpy[2:], random.getstate(), of_device


def seed_all(seed: int) -> None:
    """Seed all."""
    if not isinstance(generator := mtrand.get_bit_generator(), np.random.MT19937):
        raise UserError(
            f"numpy's global generator is {type(generator).__name__} (by numpy.random.set_bit_generator), which cannot"
            " be carried to other nodes; leave it MT19937, and use a numpy.random.Generator of your own beside"
        )
    random.seed(seed)
    np.random.seed(seed + 1 & 0xFFFFFFFF)
    _seed_torch(seed)
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
