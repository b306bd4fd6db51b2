"""Frames on a stream, each preceded by its length (4 bytes, big endian)."""

from __future__ import annotations

from collections.abc import Iterator

from pilot.core.errors import ProtocolError

HEAD_BYTES = 4


def framed(data: bytes) -> bytes:
    """Return ``data`` as one frame."""
    return len(data).to_bytes(HEAD_BYTES, "big") + data


def length_of(head: bytes | bytearray) -> int:
    """Return the length of a frame in bytes, from its ``head`` of ``HEAD_BYTES`` bytes."""
    return int.from_bytes(head, "big")


class Frames:
    """Assembles frames from the pieces that arrive on a stream.

    Parameters
    ----------
    max_bytes : the largest frame that is accepted; may be changed between two frames
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._received = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Add ``piece`` at once, then yield the frames that are complete now.

        Raises :class:`ProtocolError` at the head of a frame that is too large; nothing after it can be read.
        """
        self._received += piece
        return self._complete()

    def _complete(self) -> Iterator[bytes]:
        while len(self._received) >= HEAD_BYTES:
            size = length_of(self._received[:HEAD_BYTES])
            if size > self.max_bytes:
                raise ProtocolError(f"a frame of {size} bytes is larger than {self.max_bytes}")
            end = HEAD_BYTES + size
            if len(self._received) < end:
                return
            frame = bytes(self._received[HEAD_BYTES:end])
            del self._received[:end]
            yield frame
