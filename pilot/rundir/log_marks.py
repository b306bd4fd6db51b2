"""Marks beside each log of a script: its length at a time, and the rank that wrote from there on; and log rotation.

``<log>.times`` gets a line ``UNIX_S OFFSET RANK`` at most every :data:`PERIOD_S` while something is written. The rank
is :data:`BEGINS` at the start of a process, then :data:`NO_RANK` until its first group. The logs themselves contain
only what the script wrote; ``pilot logs`` merges them by these marks.

The content of a log larger than :data:`LOG_BYTES` is moved to ``<name>.1``, replacing the old one. Each process that
writes a script's output rotates its log while it writes (:mod:`pilot.agent.fork_server`). For other programs that write
there, the agent does it, every second.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pilot.host import private_folder
from pilot.host.files import open_regular

PERIOD_S = 0.5
NO_RANK, BEGINS = -1, -2

_marker: Marker | None = None


class LogMark(NamedTuple):
    """From ``offset`` on, ``rank`` wrote at ``unix_s`` or later."""

    unix_s: float
    offset: int
    rank: int


def times_of(log: Path) -> Path:
    """Return the file with the marks of ``log``."""
    return log.with_name(f"{log.name}.times")


@dataclass(slots=True)
class Marker:
    """Writes the marks of the log open as ``descriptor``, to which other processes may write, too.

    If the disk is full or fails, only marks are lost.
    """

    descriptor: int
    log: Path
    rank: int = BEGINS
    _due_s: float = 0.0
    _file: int | None = None

    def about_to_write(self) -> None:
        """Mark the present end of the log, if the last mark is old."""
        if time.monotonic() >= self._due_s:
            self.mark()

    def mark(self) -> None:
        """Mark the present end of the log."""
        self._due_s = time.monotonic() + PERIOD_S
        with suppress(OSError):
            size, times = os.fstat(self.descriptor).st_size, times_of(self.log)
            if self._file is not None and not _is(times, self._file):  # the log was rotated, and its marks with it
                os.close(self._file)
                self._file = None
            if self._file is None:
                self._file = private_folder.private(times, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
            os.write(self._file, f"{time.time():.2f} {size} {self.rank}\n".encode())


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def mark_log(descriptor: int, folder: int) -> Marker:
    """From now on, write marks for this process's log, into its ``folder``; both are open."""
    global _marker  # a process has one log
    name = Path(f"/proc/self/fd/{descriptor}").readlink().name
    _marker = Marker(descriptor, Path(f"/proc/self/fd/{folder}", name))
    _marker.mark()
    _marker.rank = NO_RANK
    return _marker


def now_rank(rank: int) -> None:
    """Record that this process is ``rank`` of its group from now on. Without a pool, there are no marks."""
    if _marker is not None and _marker.rank != rank:
        _marker.rank = rank
        _marker.mark()


def marks(log: Path, begin: int = 0) -> tuple[list[LogMark], int]:
    """Return the marks of ``log`` from byte ``begin`` of their file on, and the position after them. Malformed ones are
    skipped."""
    try:
        with open_regular(times_of(log)) as file:
            file.seek(begin)
            text = file.read()
    except OSError:
        return [], begin
    lines = text[: text.rfind(b"\n") + 1]
    return list(_parsed(lines)), begin + len(lines)


def _parsed(text: bytes) -> Iterator[LogMark]:
    for line in text.splitlines():
        with suppress(ValueError):
            unix_s, offset, rank = line.split()
            mark = LogMark(float(unix_s), int(offset), int(rank))
            if math.isfinite(mark.unix_s) and mark.offset >= 0:
                yield mark


LOG_BYTES = 64 << 20
MOST_BYTES = 2 * LOG_BYTES
"""A log that grew larger than this before it was examined loses all but its last :data:`LOG_BYTES`."""


def is_full(path: Path) -> bool:
    """Return whether the log should be rotated."""
    return path.stat().st_size > LOG_BYTES


def rotated(path: Path) -> Path:
    """Return the path to which the content of the log ``path`` is moved."""
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
        with open(rotated(path), "wb", opener=private_folder.private) as old:
            if size > MOST_BYTES:
                log.seek(size - LOG_BYTES)
                times_of(rotated(path)).unlink(missing_ok=True)  # its marks are those of other places
                dropped = f"[{size - LOG_BYTES:,} bytes before this were dropped: too much was printed at once]\n"
                old.write(dropped.encode())
            shutil.copyfileobj(log, old, 1 << 20)
        log.truncate(0)
