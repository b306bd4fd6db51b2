"""Logs that do not grow without end: beyond :data:`LOG_BYTES` what one holds goes to ``<name>.1``, in place of what was
there, and it begins anew.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from pilot.io.log_marks import times_of

LOG_BYTES = 64 << 20


def is_full(path: Path) -> bool:
    """Whether it is to be rotated."""
    return path.stat().st_size > LOG_BYTES


def rotated(path: Path) -> Path:
    """Where what it held goes."""
    return path.with_name(f"{path.name}.1")


def copy_and_empty(path: Path) -> None:
    """For a log that others hold open: they append, and continue at its new start; its marks go with the old content.

    What they write between the two steps is lost.
    """
    with suppress(FileNotFoundError):
        times_of(path).replace(times_of(rotated(path)))
    shutil.copyfile(path, rotated(path))
    os.truncate(path, 0)
