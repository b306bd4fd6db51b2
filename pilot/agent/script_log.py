"""A script's output goes to its log, which is rotated while it is written; if it cannot be written, the script
continues without it.
"""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from typing import Any

from pilot.io import log_marks
from pilot.io.files import SICK
from pilot.io.log_marks import Marker, mark_log

LOOK_EVERY_BYTES = 1 << 20
"""How much one process writes before it checks how long the log is; others may write to it, too."""


class Log(io.FileIO):
    """A file that drops what cannot be written: a full or failing disk is no reason to lose a trainer. It never grows
    much beyond ``LOG_BYTES``.
    """

    def __init__(self, descriptor: int, marker: Marker) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._marker = marker
        self._unseen = 0

    def write(self, data: Any, /) -> int:
        """As for any file, but what cannot be written counts as written."""
        self._marker.about_to_write()
        size = memoryview(data).nbytes
        self._unseen += size
        if self._unseen >= LOOK_EVERY_BYTES:
            self._look()
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in SICK:
                raise
            return size

    def _look(self) -> None:
        """Rotate the log if it is full; if that fails, the next look tries again."""
        self._unseen = 0
        with suppress(OSError):
            if log_marks.is_full(self._marker.log):
                log_marks.rotate_if_full(self._marker.log)
                self._marker.mark()


def take_over(folder: int) -> None:
    """Make ``sys.stdout`` and ``sys.stderr`` write like this, line by line; ``folder`` is that of the log, open."""
    marker = mark_log(1, folder)
    sys.stdout = sys.__stdout__ = _text(1, marker)  # type: ignore[misc]  # typed Final; both names lead to the same file, as ever
    sys.stderr = sys.__stderr__ = _text(2, marker)  # type: ignore[misc]  # as above


def _text(descriptor: int, marker: Marker) -> io.TextIOWrapper:
    raw = Log(descriptor, marker)
    return io.TextIOWrapper(io.BufferedWriter(raw), errors="backslashreplace", line_buffering=True)
