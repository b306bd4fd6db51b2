"""The coordinator's log: messages of its own and of its libraries, limited in size."""

from __future__ import annotations

import atexit
import logging
import os
from contextlib import suppress
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from queue import SimpleQueue

from pilot.core.errors import UserError
from pilot.io import log_marks
from pilot.io.printable import PrintableFormatter


class AsItIs(QueueHandler):
    """Passes records to the thread that formats and writes them."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Format only the arguments, which may change later; a traceback does not."""
        record.msg, record.args = record.getMessage(), None
        return record


def begin(path: Path) -> None:
    """Write the log in a thread, so that a slow disk delays nothing. The stderr of solvers and libraries goes there,
    too, because nobody may be reading ours.
    """
    try:
        _redirect(path)
    except OSError as error:
        raise UserError(f"cannot write the log {path}: {error.strerror}") from None
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    waiting: SimpleQueue[logging.LogRecord] = SimpleQueue()
    logging.raiseExceptions = False  # with a full disk there is no way to report that the log cannot be written
    logging.basicConfig(level=logging.INFO, handlers=[AsItIs(waiting)])
    writer = QueueListener(waiting, handler)
    writer.start()
    atexit.register(writer.stop)


def rotate(path: Path) -> None:
    """Rotate the log if it is full. Children that have it open keep writing to the rotated file."""
    with suppress(OSError):
        if log_marks.is_full(path):
            path.replace(log_marks.rotated(path))
            _redirect(path)


def _redirect(path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(file, 2)
    os.close(file)
