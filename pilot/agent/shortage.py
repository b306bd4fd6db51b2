"""Keeps an agent running while it, or its node, is out of descriptors or memory: necessary work is tried again.

Inspecting a process takes a descriptor. A short lack of one must not end an agent, whose trainers need none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pilot.protocol.gate import OUT_OF

log = logging.getLogger(__name__)

AGAIN_S = 1.0
_WARN_EVERY_S = 60.0


@contextmanager
def tolerated() -> Iterator[None]:
    """Leave the block at an error of a shortage, and log it. For work that is done again soon anyway."""
    try:
        yield
    except OSError as error:
        _warn(error)


def when_possible(work: Callable[[], None]) -> None:
    """Do ``work`` now, or, if an error of a shortage ends it, every :data:`AGAIN_S` until it succeeds."""
    try:
        work()
    except OSError as error:
        _warn(error)
        asyncio.get_running_loop().call_later(AGAIN_S, when_possible, work)


def _warn(error: OSError) -> None:
    """Log ``error``, now and then; raise it if it is not due to a shortage."""
    if error.errno not in OUT_OF:
        raise error
    now_s = asyncio.get_running_loop().time()
    if now_s >= _warn_again_s[0]:
        _warn_again_s[0] = now_s + _WARN_EVERY_S
        log.warning("this node is short of a resource: %s; continuing", error.strerror)


_warn_again_s = [float("-inf")]
