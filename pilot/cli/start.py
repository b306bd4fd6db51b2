"""Where the ``pilot`` command starts: what must be set up before anything else is imported."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED = 130


def main() -> None:
    """Import the command line and run it."""
    open_standard_streams()
    with ends_at_once():
        from pilot.cli.main import main as run_and_exit
    run_and_exit()


@contextmanager
def ends_at_once() -> Iterator[None]:
    """While modules are being imported there is nothing to clean up, so Ctrl-C ends the process with one line."""
    if not end_at_once():
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_at_once() -> bool:
    """Let Ctrl-C end the process with one line from now on; returns False if it is ignored or handled otherwise.

    A :class:`KeyboardInterrupt` that nothing catches would be shown as a traceback, and one that is raised in a
    callback (of the import system, say) is printed and lost.
    """
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _end)
        return True
    return False


def _end(*_: Any) -> None:
    os.write(2, b"pilot: interrupted\n")
    os._exit(INTERRUPTED)


def open_standard_streams() -> None:
    """Open standard streams that are closed (``>&-``, some batch systems): otherwise one of our files or sockets would
    get the number, and receive the output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number, which is this one
            os.set_inheritable(nowhere, True)
            setattr(sys, name, open(nowhere, "w" if number else "r"))  # noqa: PTH123, SIM115  # stays open
