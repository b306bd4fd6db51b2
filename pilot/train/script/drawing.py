"""Which functions draw from the generators that session.step seeds by the rank: Python's, numpy's and torch's own."""

from __future__ import annotations

import random
from types import BuiltinFunctionType, MethodType

import numpy as np
import torch

_OWNERS = (random.seed.__self__, np.random.normal.__self__)  # type: ignore[attr-defined]  # objects behind them
_OF_TORCH = {
    getattr(torch, name) for name in ("bernoulli", "multinomial", "normal", "rand", "randint", "randn", "randperm")
}


def draws(function: object) -> bool:
    """Whether it is one of these."""
    if not isinstance(function, BuiltinFunctionType | MethodType):
        return False
    owner = getattr(function, "__self__", None)
    return any(owner is one for one in _OWNERS) or function in _OF_TORCH
