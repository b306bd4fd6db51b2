"""The agent's end of a worker's control socket: wire messages, each preceded by its length (4 bytes, big endian)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from pilot.core.errors import ProtocolError
from pilot.io import wire

_LENGTH_BYTES = 4
_PIECE_BYTES = 1 << 16


class WorkerSocket:
    """Reads as the event loop finds something to read.

    Parameters
    ----------
    connection : one end of a stream socket pair; owned from now on
    said : called with each message
    broken : called once where what came is not a message; nothing is read after that
    """

    def __init__(
        self, connection: socket.socket, said: Callable[[wire.FromAgent], None], broken: Callable[[str], None]
    ) -> None:
        self._socket = connection
        self._socket.setblocking(False)
        self._said = said
        self._broken = broken
        self._received = bytearray()
        asyncio.get_running_loop().add_reader(connection, self.drain)

    def send(self, message: wire.Message) -> bool:
        """Send at once; False where the worker is gone, or has not read for so long that the socket is full."""
        frame = wire.encode(message)
        data = len(frame).to_bytes(_LENGTH_BYTES, "big") + frame
        try:
            return self._socket.send(data) == len(data)
        except OSError:
            return False

    def drain(self) -> None:
        """Take in everything that is there."""
        while (piece := self._piece()) is not None:
            if not piece:
                asyncio.get_running_loop().remove_reader(self._socket)
                return
            self._received += piece
            try:
                self._take_messages()
            except ProtocolError as error:
                self.close()
                self._broken(str(error))
                return

    def close(self) -> None:
        """Close; a worker that lives ends itself then."""
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()

    def _piece(self) -> bytes | None:
        try:
            return self._socket.recv(_PIECE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _take_messages(self) -> None:
        while len(self._received) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._received[:_LENGTH_BYTES], "big")
            if end > wire.MAX_FRAME_BYTES:
                raise ProtocolError(f"a message of {end} bytes is larger than {wire.MAX_FRAME_BYTES}")
            if len(self._received) < end:
                return
            frame = bytes(self._received[_LENGTH_BYTES:end])
            del self._received[:end]
            message = wire.decode_from_agent(frame)
            if isinstance(message, wire.Request | wire.Hello):
                raise ProtocolError(f"a worker does not say {type(message).__name__}")
            self._said(message)
