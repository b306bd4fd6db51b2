"""Frames over TLS 1.3 on asyncio. A :class:`Link` is one connection.

It is home-made because asyncio's own TLS allocates 256 KiB per connection at once, and limits nobody. Here a connection
gets its TLS state (about 20 KiB) when the peer first sends something, all connections read into one shared buffer, and
:class:`Limits` bounds the data that a peer sends and leaves unread. A peer that sends faster than its rate is not read
for a while, so TCP slows it down.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from dataclasses import dataclass
from typing import Protocol

from pilot.core.errors import ProtocolError
from pilot.protocol.allowance import Allowance
from pilot.protocol.connection import client_context, is_pinned
from pilot.protocol.framing import Frames, framed

_READ_BYTES = 1 << 16
_RECORD_BYTES = 1 << 14
_UNIT_BYTES = 4096
_CLOSE_S = 1.0
"""How long pending data may still go out after a connection is closed."""

_ALIVE_S = 2
_SILENT_TRIES = 4
_UNACKNOWLEDGED_S = 10
"""The kernel probes a silent peer every ``_ALIVE_S``; if nothing is acknowledged for ~10 s, the network is cut."""

_read = bytearray(_READ_BYTES)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a peer on a connection."""

    frame_bytes: int  #: largest frame that it may send
    unsent_bytes: int  #: if more than this is waiting for a peer that reads too slowly, the connection is closed
    rate_per_s: float  #: frames that it may send, on average and at once; each 4 KiB received counts as one more
    burst: float  #: frames that it may send, on average and at once; each 4 KiB received counts as one more
    in_all_bytes: float = math.inf  #: after this many bytes in total, the connection is closed


class Handler(Protocol):
    """Receives the frames and the end of a link."""

    def received(self, link: Link, frame: bytes) -> None:
        """Take a frame that arrived. Raising :class:`ProtocolError` closes the connection."""

    def closed(self, link: Link, reason: str) -> None:
        """Note that the connection is closed; called once. ``reason`` is "" if the peer or its kernel closed it."""


class WrongServer(Exception):
    """The server at this address is not the coordinator of our connection file; the message gives the reason."""


class Link(asyncio.BufferedProtocol):
    """The server's side of a connection."""

    server_side = True

    def __init__(self, context: ssl.SSLContext, handler: Handler, limits: Limits) -> None:
        self.address = "?"
        self._context = context
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._transport: asyncio.Transport | None = None
        self._open = self._ended = False
        self._reason = ""
        self._came_bytes = 0
        self._frames = Frames(limits.frame_bytes)
        self.allow(limits)

    # --- for its owner ---------------------------------------------------------------------------------------------

    def allow(self, limits: Limits) -> None:
        """Apply these limits from now on."""
        self._limits = limits
        self._frames.max_bytes = limits.frame_bytes
        self._allowance = Allowance(limits.rate_per_s, limits.burst, self._loop.time())

    def send(self, body: bytes) -> bool:
        """Send a frame; False if the connection is closed, or is dropped now because the peer has left too much
        unread."""
        if not self._open or self._transport is None or self._transport.is_closing():
            return False
        if self._transport.get_write_buffer_size() > self._limits.unsent_bytes:
            self.drop("it does not read what we send")
            return False
        assert self._tls is not None
        view = memoryview(framed(body))
        while view:
            view = view[self._tls.write(view) :]
        self._flush()
        return True

    def close(self, reason: str = "") -> None:
        """Close after sending pending data, which takes at most a second."""
        self._end(reason)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._loop.call_later(_CLOSE_S, self._transport.abort)

    def drop(self, reason: str) -> None:
        """Close at once, discarding pending data."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._open, self._ended = False, True

    # --- asyncio's side --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The TCP connection is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.address = _address(transport.get_extra_info("peername"))
        _keep_alive(transport.get_extra_info("socket"))
        if self._ended:
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's signature
        """One buffer for all connections: its content is consumed before the next one reads."""
        return memoryview(_read)

    def buffer_updated(self, count: int) -> None:
        """``count`` bytes arrived."""
        self._incoming.write(memoryview(_read)[:count])
        self._advance(count / _UNIT_BYTES)
        self._came_bytes += count
        if self._came_bytes > self._limits.in_all_bytes:
            self.drop("it sent too much without a token")

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        """The connection is closed. What arrived before was passed on."""
        self._open = False
        self._tls = None
        self._handler.closed(self, self._reason)

    # --- TLS and frames --------------------------------------------------------------------------------------------

    def _advance(self, units: float = 0.0) -> None:
        try:
            if self._open or self._handshake():
                self._spend(units + self._read_frames())
        except ssl.SSLError as error:
            self._flush()  # the alert
            self.close(f"TLS: {error.reason or error}")
        except ProtocolError as error:
            self.close(str(error))

    def _handshake(self) -> bool:
        if self._tls is None:
            self._tls = self._context.wrap_bio(self._incoming, self._outgoing, server_side=self.server_side)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        self._flush()
        self._open = True
        return True

    def _read_frames(self) -> int:
        """Pass on the frames that have arrived; returns their number."""
        frames = 0
        while data := self._read_plain():
            for frame in self._frames.feed(data):
                frames += 1
                self._handler.received(self, frame)
                if not self._open:
                    return frames
        self._flush()
        return frames

    def _read_plain(self) -> bytes:
        """Return the decrypted data available; empty if there is none, or if the peer is closing."""
        if not self._open or self._tls is None:
            return b""
        try:
            data = self._tls.read(_RECORD_BYTES)
        except ssl.SSLWantReadError:
            return b""
        if not data:
            self.close()
        return data

    def _spend(self, units: float) -> None:
        wait_s = self._allowance.owes_s(self._loop.time(), units)
        if wait_s and self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()
            self._loop.call_later(wait_s, self._resume)

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _flush(self) -> None:
        if self._transport is not None and (data := self._outgoing.read()):
            self._transport.write(data)


class ClientLink(Link):
    """A peer's side of a connection. ``pin`` is the fingerprint of the only certificate that it accepts."""

    server_side = False

    def __init__(self, handler: Handler, limits: Limits, pin: str) -> None:
        super().__init__(client_context(), handler, limits)
        self._pin = pin
        self.opened: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake: the client sends first."""
        super().connection_made(transport)
        self._advance()

    def connection_lost(self, error: Exception | None) -> None:
        """Report this to the handler only if the connection had been established."""
        if self.opened.done():
            super().connection_lost(error)
        else:
            self.opened.set_exception(WrongServer(self._reason) if self._reason else ConnectionResetError())

    def _handshake(self) -> bool:
        if not super()._handshake():
            return False
        assert self._tls is not None
        if not is_pinned(self._tls.getpeercert(binary_form=True), self._pin):
            self.drop("its certificate is not the one in the connection file")
            return False
        self.opened.set_result(None)
        return True


async def connect(host: str, port: int, pin: str, handler: Handler, limits: Limits) -> Link:
    """Connect to the server whose certificate has the fingerprint ``pin``.

    Raises
    ------
    WrongServer
        The server that answers has another certificate, or does not speak TLS.
    OSError
        Nobody answers, or the connection was closed during the handshake.
    """
    link = ClientLink(handler, limits, pin)
    try:
        await asyncio.get_running_loop().create_connection(lambda: link, host, port)
        await link.opened
    except BaseException:
        link.opened.cancel()
        link.drop("")
        raise
    return link


def _address(name: object) -> str:
    match name:
        case (str(host), int(port), *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return "?"


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _ALIVE_S),
        (socket.TCP_KEEPINTVL, _ALIVE_S),
        (socket.TCP_KEEPCNT, _SILENT_TRIES),
        (socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_S * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
