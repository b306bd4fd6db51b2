"""Log rotation: what a log larger than :data:`LOG_BYTES` contains is moved to ``<name>.1``, replacing the old one.

Each process that writes a script's output rotates its log while it writes (:mod:`pilot.agent.script_log`). For other
programs that write there, the agent does it, looking every second.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

from pilot.io import own_folder
from pilot.io.log_marks import times_of

LOG_BYTES = 64 << 20
MOST_BYTES = 2 * LOG_BYTES
"""Of a log that grew larger than this before somebody looked, only the last :data:`LOG_BYTES` are kept."""


def is_full(path: Path) -> bool:
    """Whether the log should be rotated."""
    return path.stat().st_size > LOG_BYTES


def rotated(path: Path) -> Path:
    """Where its content is moved to."""
    return path.with_name(f"{path.name}.1")


def rotate_if_full(path: Path) -> None:
    """Rotate the log if it is full, unless another process does so just now."""
    with path.open("rb+") as log:  # for writing, or NFS gives no exclusive lock
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if is_full(path):
            copy_and_empty(path)


def copy_and_empty(path: Path) -> None:
    """Rotate a log that others hold open for appending: they continue at its new start. Its marks move with the
    content.

    What they write between the copy and the truncation is lost.
    """
    with path.open("rb+") as log:
        size = os.fstat(log.fileno()).st_size
        with suppress(FileNotFoundError):
            times_of(path).replace(times_of(rotated(path)))
        with open(rotated(path), "wb", opener=own_folder.private) as old:
            if size > MOST_BYTES:
                log.seek(size - LOG_BYTES)
                times_of(rotated(path)).unlink(missing_ok=True)  # its marks are those of other places
                dropped = f"[{size - LOG_BYTES:,} bytes before this were dropped: too much was printed at once]\n"
                old.write(dropped.encode())
            shutil.copyfileobj(log, old, 1 << 20)
        log.truncate(0)
