"""A script's output goes to its log; if that cannot be written, the script continues without it."""

from __future__ import annotations

import io
import sys
from typing import Any

from pilot.io.files import SICK
from pilot.io.log_marks import Marker, mark_log


class Log(io.FileIO):
    """A file that drops what cannot be written: a full or failing disk is no reason to lose a trainer."""

    def __init__(self, descriptor: int, marker: Marker) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._marker = marker

    def write(self, data: Any, /) -> int:
        """As for any file, but what cannot be written counts as written."""
        self._marker.about_to_write()
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in SICK:
                raise
            return memoryview(data).nbytes


def take_over() -> None:
    """Make ``sys.stdout`` and ``sys.stderr`` write like this, line by line."""
    marker = mark_log(1)
    sys.stdout = sys.__stdout__ = _text(1, marker)  # type: ignore[misc]  # typed Final; both names lead to the same file, as ever
    sys.stderr = sys.__stderr__ = _text(2, marker)  # type: ignore[misc]  # as above


def _text(descriptor: int, marker: Marker) -> io.TextIOWrapper:
    raw = Log(descriptor, marker)
    return io.TextIOWrapper(io.BufferedWriter(raw), errors="backslashreplace", line_buffering=True)
