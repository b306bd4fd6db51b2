"""What an agent does while it, or its node, is out of descriptors or memory: go on, and try again what must be done.

Looking at a process takes a descriptor. One that is missing for a moment must not end an agent, whose trainers need
none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pilot.protocol.gate import OUT_OF

log = logging.getLogger(__name__)

AGAIN_S = 1.0
_TOLD_EVERY_S = 60.0


@contextmanager
def tolerated() -> Iterator[None]:
    """Leave the block at an error of a shortage, and log it. For what is done again soon anyway."""
    try:
        yield
    except OSError as error:
        if error.errno not in OUT_OF:
            raise
        _tell(error)


def when_possible(work: Callable[[], None]) -> None:
    """Do ``work`` now, or, if an error of a shortage ends it, again and again until none does."""
    try:
        work()
    except OSError as error:
        if error.errno not in OUT_OF:
            raise
        _tell(error)
        asyncio.get_running_loop().call_later(AGAIN_S, when_possible, work)


def _tell(error: OSError) -> None:
    now_s = asyncio.get_running_loop().time()
    if now_s >= _told_again_s[0]:
        _told_again_s[0] = now_s + _TOLD_EVERY_S
        log.warning("for now this node has too little of something: %s; going on", error.strerror)


_told_again_s = [float("-inf")]
