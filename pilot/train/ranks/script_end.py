"""How a script ends: released while it waits at its end, or by itself after it left the loop by ``break``.

A closed generator cannot tell ``break`` from an exception in the loop's body, but this is known at the end of the
script.
"""

from __future__ import annotations

import atexit
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from weakref import WeakKeyDictionary

_left: list[Callable[[], None]] = []
_loops: WeakKeyDictionary[Generator[int, None, None], int] = WeakKeyDictionary()
"""And their threads."""


class Released(SystemExit):
    """The worker was told to stop. If not caught, it ends the script silently with status 0."""


@contextmanager
def released() -> Iterator[None]:
    """Within, SIGTERM raises :class:`Released` (in the main thread; elsewhere nothing changes)."""
    before = signal.getsignal(signal.SIGTERM)
    release_when(lambda: True)
    try:
        yield
    finally:
        if _is_main():
            signal.signal(signal.SIGTERM, before)


def release_when(told: Callable[[], bool]) -> None:
    """From now on, SIGTERM raises :class:`Released` if ``told`` says so; otherwise it does what it did before."""
    if not _is_main():
        return
    before = signal.getsignal(signal.SIGTERM)

    def signalled(number: int, frame: FrameType | None) -> None:
        if told():
            raise Released(0)
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGTERM, signalled)


def closed_at_end(loop: Generator[int, None, None]) -> Generator[int, None, None]:
    """``loop``, which ends with the script at the latest: a variable of the script's (``bar = tqdm(loop)``) may still
    have it after ``break``.
    """
    _loops[loop] = threading.get_ident()
    return loop


@atexit.register  # before Python takes modules apart
def _close_loops() -> None:
    for loop in [one for one, thread in _loops.items() if thread == threading.get_ident()]:
        loop.close()


def at_good_end(call: Callable[[], None]) -> None:
    """Call ``call`` if the script ends without an error."""
    _left.append(call)


def script_ended(leaving: SystemExit | None = None) -> None:
    """The script ran to its end, or called ``sys.exit``; called by whoever ran it."""
    if leaving is not None and (leaving.code not in (None, 0) or isinstance(leaving, Released)):
        return
    _close_loops()
    while _left:
        _left.pop()()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
