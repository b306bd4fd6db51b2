"""The coordinator's process, which lives for weeks: its log, with messages of its own and of its libraries, limited in
size; and its memory, which must not creep up though what it knows does not grow.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import gc
import logging
import os
import signal
import sys
from contextlib import suppress
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from queue import SimpleQueue

from pilot.core.errors import UserError
from pilot.host.printable import PrintableFormatter
from pilot.rundir import log_marks


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


_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_MMAP_THRESHOLD_BYTES = 128 << 10


def return_large_blocks() -> None:
    """Call it before any thread is started.

    glibc raises the size from which a block is a mapping of its own to the largest one that was freed so far. A segment
    of the journal that was compressed once (4 MiB) is taken from the heap the next time, and the small blocks that
    follow keep its place from being given back. A fixed size prevents that, as one arena for all threads prevents a
    remainder in each (mallopt(3)). Other C libraries have neither these options nor this need.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        mallopt(_M_ARENA_MAX, 1)


def freeze_what_is_loaded() -> None:
    """Modules are no garbage, so full collections need not examine them.

    Python postpones a full collection until there are a quarter as many new objects as the last one has examined.
    With the 100,000 objects of modules that is 25,000, and that much garbage in cycles could pile up. The second
    collection makes Python forget the modules in this count, too.
    """
    gc.collect()
    gc.freeze()
    gc.collect()


def heeded_signals() -> list[signal.Signals]:
    """The signals that ask the coordinator to end; under nohup, a terminal that closes does not."""
    hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, signal.SIGINT, *hang_up]


def start_children_without_threads() -> None:
    """Before Python 3.12, asyncio starts a thread for each child process, and login nodes limit threads."""
    if sys.version_info < (3, 12):
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
