"""How a script ends: released while it waits at its end, or by itself after it left the loop by ``break``.

A closed generator cannot tell ``break`` from an exception in the loop's body, but this is known at the end of the
script.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_left: list[Callable[[], None]] = []


class Released(SystemExit):
    """The worker was told to stop. If not caught, it ends the script silently with status 0."""


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


def release_when(told: Callable[[], bool]) -> None:
    """From now on, SIGTERM raises :class:`Released` if ``told`` says so; otherwise it does what it did before."""
    if threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(signal.SIGTERM)

    def signalled(number: int, frame: FrameType | None) -> None:
        if told():
            raise Released(0)
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGTERM, signalled)


def at_good_end(call: Callable[[], None]) -> None:
    """Call ``call`` if the script ends without an error."""
    _left.append(call)


def script_ended(leaving: SystemExit | None = None) -> None:
    """The script ran to its end, or called ``sys.exit``; called by whoever ran it."""
    if leaving is not None and (leaving.code not in (None, 0) or isinstance(leaving, Released)):
        return
    while _left:
        _left.pop()()


def _release(_number: int, _frame: FrameType | None) -> None:
    raise Released(0)
