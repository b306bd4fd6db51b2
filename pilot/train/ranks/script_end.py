"""The end of a script: it is released while it waits at the loop's end, or ends by itself after a ``break``.

A closed generator cannot distinguish ``break`` from an exception in the loop's body, but the end of the script can.
"""

from __future__ import annotations

import atexit
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from weakref import WeakKeyDictionary, WeakMethod

_failed: list[WeakMethod[Callable[[], None]]] = []
_left: list[Callable[[], None]] = []
_loops: WeakKeyDictionary[Generator[int, None, None], int] = WeakKeyDictionary()
"""The loops of this process, with their threads."""


class Released(SystemExit):
    """Raised when the worker is to stop. If not caught, it ends the script silently with status 0."""


@contextmanager
def released() -> Iterator[None]:
    """Let SIGTERM raise :class:`Released` in the body (in the main thread; elsewhere nothing changes)."""
    before = signal.getsignal(signal.SIGTERM)
    release_when(lambda: True)
    try:
        yield
    finally:
        if _is_main():
            signal.signal(signal.SIGTERM, before)


def release_when(is_released: Callable[[], bool]) -> None:
    """Let SIGTERM raise :class:`Released` if ``is_released`` returns True, or else call the old handler."""
    if not _is_main():
        return
    before = signal.getsignal(signal.SIGTERM)

    def signalled(number: int, frame: FrameType | None) -> None:
        if is_released():
            raise Released(0)
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGTERM, signalled)


def closed_at_end(loop: Generator[int, None, None]) -> Generator[int, None, None]:
    """Return ``loop``, and close it at the end of the script, when a variable (``bar = tqdm(loop)``) may hold it."""
    _loops[loop] = threading.get_ident()
    return loop


@atexit.register  # before Python clears modules
def _close_loops() -> None:
    for loop in [one for one, thread in _loops.items() if thread == threading.get_ident()]:
        loop.close()


def at_good_end(call: Callable[[], None]) -> None:
    """Call ``call`` if the script ends without an error."""
    _left.append(call)


def at_failure(call: Callable[[], None]) -> None:
    """Call the method ``call`` if the script ends with an error, and its object is still there."""
    _failed.append(WeakMethod(call))


def script_failed() -> None:
    """Run the calls of :func:`at_failure`."""
    for call in filter(None, [method() for method in _failed]):
        call()


def script_ended(leaving: SystemExit | None = None) -> None:
    """Close loops and run the calls of :func:`at_good_end`, after the script ran to its end or called ``sys.exit``;
    with an exit status, those of :func:`at_failure`.
    """
    if leaving is not None and (leaving.code not in (None, 0) or isinstance(leaving, Released)):
        script_failed()
        return
    _close_loops()
    while _left:
        _left.pop()()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
