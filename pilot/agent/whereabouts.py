"""Finds the coordinator: rereads the connection file after the connection was lost.

A restarted coordinator may have another port, or be on another host; the file says so. If the file belongs to another
pool, or was removed, our pool is over.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

from pilot.core.errors import UserError
from pilot.io import connection
from pilot.io.connection import Connection

GONE_S = 10.0
"""A file missing for this long was removed; on a shared file system it may be invisible for a moment."""


class Whereabouts:
    """``file`` is the connection file, ``now`` its last content that belonged to our pool.

    The constructor reads it; :class:`UserError` if that fails.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.now: Connection = connection.load(file)
        self._found = self.now
        self._missing_since_s: float | None = None
        self._reader: threading.Thread | None = None

    def look(self) -> str:
        """Why our pool is over, according to the last look, or "" if it may come back. Also begins to read the file
        again.

        Never blocks: a hanging file system must not keep an agent from watching its lease.
        """
        over = self._over(time.monotonic())
        if not over:
            self.now = self._found
        if self._reader is None or not self._reader.is_alive():
            with suppress(RuntimeError):  # no thread can be started now
                reader = threading.Thread(target=self._read, daemon=True)
                reader.start()
                self._reader = reader
        return over

    def _over(self, now_s: float) -> str:
        if self._missing_since_s is not None and now_s - self._missing_since_s >= GONE_S:
            return f"its pool has ended: {self.file} was removed"
        ours, found = self.now, self._found
        if (found.coordinator, found.certificate) != (ours.coordinator, ours.certificate):
            return f"its pool has ended: {self.file} now belongs to pool {found.coordinator}"
        return ""

    def _read(self) -> None:
        try:
            self._found, self._missing_since_s = connection.load(self.file), None
        except UserError:
            self._note_missing()

    def _note_missing(self) -> None:
        """Note that the file is missing. Any other problem with it or its file system may pass."""
        try:
            self.file.stat()
        except FileNotFoundError:
            self._missing_since_s = self._missing_since_s or time.monotonic()
        except OSError:
            pass
        else:
            self._missing_since_s = None
