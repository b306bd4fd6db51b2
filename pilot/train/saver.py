"""Checkpoints of one trainer: written off the training thread, from a copy; loaded where nobody has a state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pilot.checkpoint.snapshot import Snapshots
from pilot.core.errors import CheckpointError
from pilot.io.wire import CheckpointDone


class Saver:
    """Writes one checkpoint at a time.

    Parameters
    ----------
    trainer : whose
    directory : where its checkpoints are
    kept : so many of the newest stay
    tell : called with the outcome of each write, from any thread
    """

    def __init__(self, trainer: str, directory: Path, kept: int, tell: Callable[[CheckpointDone], None]) -> None:
        self._trainer = trainer
        self._directory = directory
        self._kept = kept
        self._tell = tell
        self._thread: threading.Thread | None = None
        self._snapshots = Snapshots()

    @property
    def busy(self) -> bool:
        """Whether a write goes on in the background."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, generation: int, step: int, state: Mapping[str, Any]) -> None:
        """Write a copy of ``state`` in the background; not while ``busy``."""
        copy = self._snapshots.take(state)
        self._thread = threading.Thread(target=self._write, args=(generation, step, copy, False), daemon=True)
        self._thread.start()

    def write(self, generation: int, step: int, state: Mapping[str, Any], *, asked: bool) -> None:
        """Write ``state`` now, after the write in the background."""
        if self._thread is not None:
            self._thread.join()
        self._write(generation, step, state, asked)

    def _write(self, generation: int, step: int, state: Mapping[str, Any], asked: bool) -> None:
        from pilot.checkpoint import store

        try:
            done = store.write(self._directory, generation, step, state, self._kept)
        except (CheckpointError, OSError) as error:
            self._tell(CheckpointDone(self._trainer, generation, step, asked, error=str(error)))
            return
        told = CheckpointDone(self._trainer, generation, step, asked, str(done.path), "", done.seconds, done.bytes)
        self._tell(told)

    def load(self, granted: int, remark: Callable[[str], None]) -> Mapping[str, Any] | None:
        """The newest checkpoint that verifies, of a generation up to ``granted``; None: there is none.

        ``remark`` is called with each file that was skipped, and why.
        """
        from pilot.checkpoint import store

        def skipped(path: Path, why: str) -> None:
            remark(f"checkpoint {path.name} was skipped: {why}")

        loaded = store.load_newest(self._directory, granted, skipped)
        return loaded.state if loaded is not None else None
