"""The coordinator's log: all that it and its libraries say, in bounds."""

from __future__ import annotations

import atexit
import logging
import os
from contextlib import suppress
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from queue import SimpleQueue

from pilot.core.errors import UserError
from pilot.io import log_rotation
from pilot.io.printable import PrintableFormatter


class AsItIs(QueueHandler):
    """Hands records on to the thread that writes them, where they are made into lines."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Only the arguments are taken in, which may change; the traceback stays what it is."""
        record.msg, record.args = record.getMessage(), None
        return record


def begin(path: Path) -> None:
    """Also what solvers and libraries say on stderr goes to the log: whoever read it may be gone by then. A thread
    writes it, so that a slow disk holds up nobody.
    """
    try:
        _redirect(path)
    except OSError as error:
        raise UserError(f"cannot write the log {path}: {error.strerror}") from None
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    waiting: SimpleQueue[logging.LogRecord] = SimpleQueue()
    logging.raiseExceptions = False  # on a full disk there is nobody to tell that the log cannot be written
    logging.basicConfig(level=logging.INFO, handlers=[AsItIs(waiting)])
    writer = QueueListener(waiting, handler)
    writer.start()
    atexit.register(writer.stop)


def rotate(path: Path) -> None:
    """Begin it anew where it is full. Children that have it open write on to where it went."""
    with suppress(OSError):
        if log_rotation.is_full(path):
            path.replace(log_rotation.rotated(path))
            _redirect(path)


def _redirect(path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(file, 2)
    os.close(file)
