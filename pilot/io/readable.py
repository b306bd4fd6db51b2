"""Which descriptors have something to read; of any number, unlike ``select.select``, which ends at descriptor 1023."""

from __future__ import annotations

import selectors
from collections.abc import Iterable
from typing import Any


def readable(files: Iterable[Any], timeout_s: float | None = None) -> list[Any]:
    """Those of ``files`` (descriptors, or what has a ``fileno``) that can be read or have ended; waits up to
    ``timeout_s``, in whole milliseconds (None: without end), until there is one.
    """
    with selectors.PollSelector() as selector:
        for file in files:
            selector.register(file, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(timeout_s)]
