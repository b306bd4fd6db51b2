"""Run by ``pilot doctor`` as each rank of a world: an allreduce with a known result, over a group's fabric.

Rank 0 prints one line of JSON; a rank with a wrong result exits with status 1.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from pilot.comm import mpi

NUMBERS = 1_000_000


def main() -> int:
    """Returns the exit status: 0 if the sum is right."""
    started_s = time.perf_counter()
    fabric = mpi.start()
    up_s = time.perf_counter() - started_s
    numbers = np.full(NUMBERS, float(fabric.rank + 1))
    pending = fabric.sum(numbers)
    while not pending.done():
        time.sleep(1e-4)
    seconds = time.perf_counter() - started_s - up_s
    right = bool((numbers == fabric.size * (fabric.size + 1) / 2).all())
    if fabric.rank == 0:
        print(json.dumps({"ranks": fabric.size, "bytes": numbers.nbytes, "init_s": up_s, "allreduce_s": seconds}))
    mpi.finish()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
