"""What changes if a plain value does, or a random generator, or an object's attributes of these kinds."""

from __future__ import annotations

import random
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from pilot.train.script.objects import inner, package_of

PLAIN = (
    *(bool, int, float, str, bytes, complex, Decimal, Fraction, np.number, np.bool_),
    *(frozenset, range, slice, PurePath, torch.dtype),
)


def numbers_and_generators(holder: object) -> dict[str, Any]:
    """What an object of the script has in attributes, by name: what changes if these do."""
    marks = {name: itself(value) if isinstance(value, PLAIN) else random_state(value) for name, value in inner(holder)}
    return {name: mark for name, mark in marks.items() if mark is not None}


def itself(value: Any) -> Any:
    """A plain value. What is not a number does not equal itself."""
    return repr(value) if value != value else value  # also of complex and decimal numbers


def random_state(value: Any) -> Any:
    """Of a random generator; None: it is something else."""
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return str(value.get_state())
    if type(value) is random.Random:
        return value.getstate()
    if package_of(type(value).__module__) not in ("torch", "scipy"):
        return None
    count = getattr(value, "num_generated", None)  # of points that fill space evenly (Sobol)
    return count if isinstance(count, int) else None
