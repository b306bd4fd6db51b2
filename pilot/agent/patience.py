"""Starting processes on a node that refuses it now and then (its limit of tasks, too little memory)."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from pilot.core.errors import UserError

LIMIT_S = 2.0
PAUSE_S = 0.05
_PASSING = (errno.EAGAIN, errno.ENOMEM)

T = TypeVar("T")


def patiently(start: Callable[[], T]) -> T:
    """Return the result of ``start``, which forks. A refusal may pass soon, so it is tried again for :data:`LIMIT_S`;
    :class:`UserError` if it was always refused.
    """
    by_s = time.monotonic() + LIMIT_S
    while True:
        try:
            return start()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            if time.monotonic() > by_s:
                raise UserError(
                    f"this node refuses to start a process: {error.strerror} (its limit of tasks, or its memory?)"
                ) from None
        time.sleep(PAUSE_S)
