"""How a worker that waits at its end is let go: by ``StopProcess``, or by SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Released(SystemExit):
    """The worker was told to stop. Uncaught it ends the script, quietly and with status 0."""


@contextmanager
def released() -> Iterator[None]:
    """Within, SIGTERM raises :class:`Released` (in the main thread; elsewhere nothing changes)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _release)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _release(_number: int, _frame: FrameType | None) -> None:
    raise Released(0)
