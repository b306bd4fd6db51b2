"""Log rotation: what a log larger than :data:`LOG_BYTES` contains is moved to ``<name>.1``, replacing the old one."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from pilot.io.log_marks import times_of

LOG_BYTES = 64 << 20


def is_full(path: Path) -> bool:
    """Whether the log should be rotated."""
    return path.stat().st_size > LOG_BYTES


def rotated(path: Path) -> Path:
    """Where its content is moved to."""
    return path.with_name(f"{path.name}.1")


def copy_and_empty(path: Path) -> None:
    """Rotate a log that others hold open for appending: they continue at its new start. Its marks move with the
    content.

    What they write between the copy and the truncation is lost.
    """
    with suppress(FileNotFoundError):
        times_of(path).replace(times_of(rotated(path)))
    shutil.copyfile(path, rotated(path))
    os.truncate(path, 0)
