"""Which rows run on real ranks in a short test run: the core rows, and a slice of the others that moves on each day."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence

SLICE_ROWS = 6
VARIABLE = "EQUIVALENCE_SLICE"
"""Its value repeats a slice. Setting it here makes all of pytest's processes agree."""

NUMBER = int(os.environ.setdefault(VARIABLE, str(datetime.date.today().toordinal())))


def in_slice(names: Sequence[str]) -> set[str]:
    """The rows of slice :data:`NUMBER`; consecutive slices cover all."""
    slices = max(1, -(-len(names) // SLICE_ROWS))
    return set(names[NUMBER % slices :: slices])
