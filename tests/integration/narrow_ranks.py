"""A rank that compares sums that travel as 16 or 8 bits, several at once, with the exact ones. Rank 0 prints the
errors: for 16 bits as parts of the sum of absolute values, for 8 bits as parts of the largest error allowed; and how
many numbers of the sum are NaN when one is.
"""

from __future__ import annotations

import json
import zlib

import numpy as np
from numpy.typing import NDArray

from pilot.comm import mpi
from pilot.comm.narrow import WIRES
from pilot.comm.pipeline import PIECE_BYTES, Pipeline, SharedPart, put_pieces

COUNTS = (1, 7, 1000, 300_001, PIECE_BYTES * 5 // 8 + 3)
"""The last one is sent in several pieces."""


def main() -> None:
    fabric = mpi.start()
    printed: dict[str, float] = {}
    for kind in WIRES:
        generators = [np.random.default_rng(rank) for rank in range(fabric.size)]
        brought = [[g.standard_normal(n).astype(np.float32) for n in COUNTS] for g in generators]
        mine = [numbers.copy() for numbers in brought[fabric.rank]]
        summed(fabric, mine, kind)
        exact = [np.sum([b[i] for b in brought], axis=0, dtype=np.float64) for i in range(len(COUNTS))]
        if kind == "int8":
            most = [allowed([b[i] for b in brought], e) for i, e in enumerate(exact)]
        else:
            most = [np.sum([np.abs(b[i]) for b in brought], axis=0) + 0.1 for i in range(len(COUNTS))]
        printed[kind] = max(float((abs(m - e) / s).max()) for m, e, s in zip(mine, exact, most, strict=True))
        assert_alike(fabric, mine)
    numbers = np.ones(100_000, np.float32)
    numbers[50_000] = np.nan if fabric.rank == 0 else 1
    summed(fabric, [numbers], "int8")
    assert_alike(fabric, [numbers])
    assert np.isnan(numbers[50_000])
    np.testing.assert_allclose(numbers[~np.isnan(numbers)], fabric.size, rtol=1e-6)
    printed["NaN"] = int(np.isnan(numbers).sum())
    if fabric.rank == 0:
        print(json.dumps(printed), flush=True)
    mpi.finish()


def summed(fabric: mpi.MpiFabric, arrays: list[NDArray[np.float32]], kind: str) -> None:
    """Sum all of them at once, as parts of a step."""
    sums = Pipeline()
    parts = [SharedPart((numbers,), kind) for numbers in arrays]
    for number in range(len(parts)):
        put_pieces(sums, fabric, parts, number, rail=0, rails=1)
    while not sums.done():
        pass


def allowed(brought: list[NDArray[np.float32]], exact: NDArray[np.float64]) -> float:
    """The most that a sum may be off: half a step of each scale. (Blocks have scales of their own, none a larger.)"""
    once = sum(float(abs(numbers).max()) / 254 for numbers in brought)
    return once + (float(abs(exact).max()) + once) / 254


def assert_alike(fabric: mpi.MpiFabric, arrays: list[NDArray[np.float32]]) -> None:
    rows = np.empty((fabric.size, 1), np.int64)
    gathered = fabric.gather(np.array([zlib.crc32(b"".join(m.tobytes() for m in arrays))], np.int64), rows)
    while not gathered.done():
        pass
    assert len(set(rows[:, 0].tolist())) == 1, "the ranks hold different sums"


if __name__ == "__main__":
    main()
