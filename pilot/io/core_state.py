"""The core's state as bytes, the same wherever and whenever the same events led to it."""

from __future__ import annotations

import msgspec

from pilot.core.coordinator import Coordinator
from pilot.core.errors import JournalError, PilotError
from pilot.core.state import State
from pilot.io.segments import digest


def encoded(core: Coordinator) -> bytes:
    """All that ``core`` knows."""
    return msgspec.msgpack.encode(core.snapshot())


def decoded(data: bytes) -> State:
    """The state of which ``data`` are the bytes; :class:`JournalError` where they are none."""
    try:
        return msgspec.msgpack.decode(data, type=State)
    except (msgspec.DecodeError, PilotError, ValueError, OverflowError, RecursionError) as error:
        raise JournalError(f"not a valid state of the core: {error}") from None


def state_digest(core: Coordinator) -> str:
    """By which two states are compared."""
    return digest(encoded(core))
