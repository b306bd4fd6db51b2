"""Which rows run on real ranks in a short test run: the core rows, and a slice of the others that moves on each day;
and at which of many places ranks come and go there.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import Any

import pytest

SLICE_ROWS = 6
PARTS = 3
VARIABLE = "EQUIVALENCE_SLICE"
"""Its value repeats a slice. Setting it here makes all of pytest's processes agree."""

NUMBER = int(os.environ.setdefault(VARIABLE, str(datetime.date.today().toordinal())))


def in_slice(names: Sequence[str]) -> set[str]:
    """The rows of slice :data:`NUMBER`; consecutive slices cover all."""
    slices = max(1, -(-len(names) // SLICE_ROWS))
    return set(names[NUMBER % slices :: slices])


def in_part(names: Sequence[str]) -> set[str]:
    """The same of :data:`PARTS` slices, for rows that take less time."""
    return set(names[NUMBER % PARTS :: PARTS])


def in_parts() -> list[Any]:
    """For a test at many places: each :data:`PARTS`-th one from this number on. Consecutive slices cover all."""
    marks = (pytest.mark.slice if part == NUMBER % PARTS else pytest.mark.long for part in range(PARTS))
    return [pytest.param(part, marks=mark) for part, mark in enumerate(marks)]
