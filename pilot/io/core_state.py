"""The core's state as bytes; the same events always give the same bytes."""

from __future__ import annotations

import msgspec

from pilot.core.coordinator import Coordinator
from pilot.core.errors import JournalError, PilotError
from pilot.core.state import State
from pilot.io.segments import digest


def encoded(core: Coordinator) -> bytes:
    """The complete state of ``core`` as bytes."""
    return msgspec.msgpack.encode(core.snapshot())


def decoded(data: bytes) -> State:
    """The state encoded in ``data``; :class:`JournalError` if it is not valid."""
    try:
        return msgspec.msgpack.decode(data, type=State)
    except (msgspec.DecodeError, PilotError, ValueError, OverflowError, RecursionError) as error:
        raise JournalError(f"not a valid state of the core: {error}") from None


def state_digest(core: Coordinator) -> str:
    """A digest to compare two states by."""
    return digest(encoded(core))
