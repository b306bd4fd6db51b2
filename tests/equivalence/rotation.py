"""Which rows run on real ranks in a short run of the tests: the core rows, and a slice of the others that goes on each
day.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence

SLICE_ROWS = 6
VARIABLE = "EQUIVALENCE_SLICE"
"""Its value repeats a slice. Set here, it is the same in all of pytest's processes."""

NUMBER = int(os.environ.setdefault(VARIABLE, str(datetime.date.today().toordinal())))


def in_slice(names: Sequence[str]) -> set[str]:
    """Those of slice :data:`NUMBER`; the slices one after the other have all."""
    slices = max(1, -(-len(names) // SLICE_ROWS))
    return set(names[NUMBER % slices :: slices])
