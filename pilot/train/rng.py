"""The random generators that a script may use: torch's (CPU), numpy's and Python's."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed all three. (``torch.manual_seed`` would also queue a call for CUDA each time.)"""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


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
