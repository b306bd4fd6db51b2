"""A rank that compares sums that travel as 16 bits, several at once, with the exact ones. Rank 0 prints the errors."""

from __future__ import annotations

import json
import zlib

import numpy as np

from pilot.comm import mpi
from pilot.comm.narrow import KINDS

COUNTS = (1, 7, 1000, 300_001)


def main() -> None:
    fabric = mpi.start()
    errors = {}
    for kind in KINDS:
        generators = [np.random.default_rng(rank) for rank in range(fabric.size)]
        brought = [[g.standard_normal(n).astype(np.float32) for n in COUNTS] for g in generators]
        mine = [numbers.copy() for numbers in brought[fabric.rank]]
        pending = [fabric.sum_narrow(numbers, kind) for numbers in mine]
        while pending:
            if pending[0].done():
                del pending[0]
        exact = [np.sum([b[i] for b in brought], axis=0, dtype=np.float64) for i in range(len(COUNTS))]
        size = [np.sum([np.abs(b[i]) for b in brought], axis=0) for i in range(len(COUNTS))]
        errors[kind] = max(float((abs(m - e) / (s + 0.1)).max()) for m, e, s in zip(mine, exact, size, strict=True))
        rows = np.empty((fabric.size, 1), np.int64)
        gathered = fabric.gather(np.array([zlib.crc32(b"".join(m.tobytes() for m in mine))], np.int64), rows)
        while not gathered.done():
            pass
        assert len(set(rows[:, 0].tolist())) == 1, "the ranks hold different sums"
    if fabric.rank == 0:
        print(json.dumps(errors), flush=True)
    mpi.finish()


if __name__ == "__main__":
    main()
