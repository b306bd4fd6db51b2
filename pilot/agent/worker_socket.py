"""The agent's end of a worker's control socket: wire messages in frames."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from pilot.core.errors import ProtocolError
from pilot.io import wire
from pilot.io.framing import Frames, framed

_PIECE_BYTES = 1 << 16


class WorkerSocket:
    """Reads whenever the event loop reports something to read.

    Parameters
    ----------
    connection : one end of a stream socket pair; owned from now on
    said : called with each message
    broken : called once if something other than a message arrived; nothing is read after that
    """

    def __init__(
        self, connection: socket.socket, said: Callable[[wire.FromAgent], None], broken: Callable[[str], None]
    ) -> None:
        self._socket = connection
        self._socket.setblocking(False)
        self._said = said
        self._broken = broken
        self._frames = Frames(wire.MAX_FRAME_BYTES)
        self.gone = False
        asyncio.get_running_loop().add_reader(connection, self.drain)

    def send(self, message: wire.Sent) -> bool:
        """Send at once; False if the worker has closed its end (``gone``), or has not read for so long that the socket
        is full.
        """
        data = framed(wire.encode(message))
        try:
            return self._socket.send(data) == len(data)
        except BlockingIOError:
            return False
        except OSError:
            self.gone = True
            return False

    def drain(self) -> None:
        """Read everything that has arrived."""
        while (piece := self._piece()) is not None:
            if not piece:
                asyncio.get_running_loop().remove_reader(self._socket)
                return
            try:
                self._take_messages(piece)
            except ProtocolError as error:
                self.close()
                self._broken(str(error))
                return

    def close(self) -> None:
        """Close; a running worker exits then."""
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

    def _take_messages(self, piece: bytes) -> None:
        for frame in self._frames.feed(piece):
            message = wire.decode_from_agent(frame)
            if isinstance(message, wire.Request | wire.Hello):
                raise ProtocolError(f"a worker must not send {type(message).__name__}")
            self._said(message)
