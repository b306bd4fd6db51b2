"""Frames on a stream: a length of four bytes, big-endian, then so many bytes. One frame is one message."""

from __future__ import annotations

from collections.abc import Iterator

from pilot.core.errors import ProtocolError

_LENGTH_BYTES = 4


def framed(body: bytes) -> bytes:
    """``body`` as it goes out."""
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class Frames:
    """Finds the frames in what a stream brings. ``limit_bytes`` is the largest one; it may change between two."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._waiting = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The frames that ``data`` completes; :class:`ProtocolError` where one says that it is too large."""
        self._waiting += data
        while len(self._waiting) >= _LENGTH_BYTES:
            size = int.from_bytes(self._waiting[:_LENGTH_BYTES], "big")
            if size > self.limit_bytes:
                raise ProtocolError(f"frame of {size} bytes is larger than {self.limit_bytes}")
            end = _LENGTH_BYTES + size
            if len(self._waiting) < end:
                return
            body = bytes(self._waiting[_LENGTH_BYTES:end])
            del self._waiting[:end]
            yield body
