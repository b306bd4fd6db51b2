"""Tests what a file system can do for checkpoints, for ``pilot doctor``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import h5py
import numpy as np

from pilot.checkpoint import store
from pilot.core.errors import CheckpointError

PROBE_BYTES = 1_000_000


def locking_problem(directory: Path) -> str | None:
    """HDF5's error when it locks a file in ``directory``; None if locking works."""
    with tempfile.TemporaryDirectory(prefix=".pilot-", dir=directory) as folder:
        try:
            with h5py.File(Path(folder) / "locked.h5", "w", locking=True) as file:
                file["probe"] = 1
        except OSError as error:
            return str(error).partition("\n")[0]
    return None


def write_seconds(directory: Path) -> float:
    """Return how long publishing a small checkpoint in ``directory`` takes; it is read back, verified and removed.

    Raises
    ------
    CheckpointError : writing failed, or it read back differently
    """
    numbers = np.random.default_rng(0).integers(0, 256, PROBE_BYTES, np.uint8)
    with tempfile.TemporaryDirectory(prefix=".pilot-", dir=directory) as folder:
        written = store.write(Path(folder), 1, 1, {"numbers": numbers}, kept=1)
        if not np.array_equal(store.load(written.path).state["numbers"], numbers):
            raise CheckpointError(f"a checkpoint written to {directory} read back differently")
    return written.seconds
