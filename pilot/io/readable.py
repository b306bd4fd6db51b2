"""Which descriptors have something to read; of any number, unlike ``select.select``, which ends at descriptor 1023."""

from __future__ import annotations

import math
import select
from collections.abc import Iterable
from typing import Any


def readable(files: Iterable[Any], timeout_s: float | None = None) -> list[Any]:
    """Those of ``files`` (descriptors, or what has a ``fileno``) that can be read or have ended; waits up to
    ``timeout_s``, in whole milliseconds (None: without end), until there is one.
    """
    poll = select.poll()  # a selector of the standard library would take four times as long, in every step of a worker
    by_number = {file if isinstance(file, int) else file.fileno(): file for file in files}
    for number in by_number:
        poll.register(number, select.POLLIN)
    found = poll.poll(None if timeout_s is None else math.ceil(1e3 * max(0.0, timeout_s)))
    return [by_number[number] for number, _ in found]
