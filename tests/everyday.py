"""Which of many like tests run every day; the others are marked `long`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

PARTS = 3


def one_in(parts: int, names: Sequence[str], always: Sequence[str] = ()) -> list[Any]:
    """Return these names as parameters: each ``parts``-th one runs every day, as do those of ``always``."""
    chosen = {*names[::parts], *always}
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.long) for name in names]


def parts(count: int = PARTS) -> list[Any]:
    """Return the numbers of ``count`` parts of a range as parameters; the first part runs every day."""
    return [pytest.param(part, marks=[pytest.mark.long] * (part > 0)) for part in range(count)]
