"""Frames on a stream: each is preceded by its length (4 bytes, big endian)."""

from __future__ import annotations

from collections.abc import Iterator

from pilot.core.errors import ProtocolError

HEAD_BYTES = 4


def framed(data: bytes) -> bytes:
    """``data`` as one frame."""
    return len(data).to_bytes(HEAD_BYTES, "big") + data


def length_of(head: bytes | bytearray) -> int:
    """Bytes of the frame that follows ``head``, its first ``HEAD_BYTES`` bytes."""
    return int.from_bytes(head, "big")


class Frames:
    """Puts frames together from the pieces in which a stream gives them.

    Parameters
    ----------
    max_bytes : the largest frame that is taken; it may change between two frames
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._received = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Take in ``piece`` at once; then the frames that are whole by now, each removed as it is given.

        Raises :class:`ProtocolError` at the head of a frame that is too large; nothing after it can be read.
        """
        self._received += piece
        return self._whole()

    def _whole(self) -> Iterator[bytes]:
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
