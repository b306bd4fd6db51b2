"""One connection to the coordinator: a DEALER with CURVE that tells when it closes.

A link is made for one connection and thrown away with it, so nothing that was queued for a coordinator that died
reaches its successor behind the agent's back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from pilot.core.errors import ProtocolError
from pilot.io import wire
from pilot.io.connection import Connection

log = logging.getLogger(__name__)

HANDSHAKE_TRIES = 3
"""So many connections that end within the handshake, one after the other, mean that our key is not taken."""

_PING_S = 2.0
_PING_LIMIT_S = 10.0
_RETRY_S = 0.1
_RETRY_MAX_S = 2.0
_LINGER_S = 1.0


class HandshakeFailed(Exception):
    """The peer does not take our key, or does not speak CURVE."""


class Unreachable(Exception):
    """Nobody answered at the endpoint in time."""


class CoordinatorLink:
    """A connection to the coordinator. Its key pair is the pilot's own."""

    def __init__(self, context: zmq.asyncio.Context, connection: Connection, keys: tuple[bytes, bytes]) -> None:
        self._socket = _socket(context, connection, keys)
        self._monitor = self._socket.get_monitor_socket()
        self._endpoint = connection.endpoint

    async def open(self, limit_s: float) -> None:
        """Connect; :class:`Unreachable` after ``limit_s``, :class:`HandshakeFailed` where the key is not taken."""
        self._socket.connect(self._endpoint)
        try:
            async with asyncio.timeout(limit_s):
                await self._handshake()
        except TimeoutError:
            raise Unreachable from None

    def send(self, message: wire.Message) -> None:
        """Send; what does not go out before the connection closes is lost."""
        self._socket.send(wire.encode(message))

    async def run(self, take: Callable[[wire.ToAgent], None]) -> None:
        """Hand on what comes until the connection closes."""
        receiving = asyncio.create_task(self._receive(take))
        closed = asyncio.create_task(self._wait_closed())
        try:
            done, _ = await asyncio.wait((receiving, closed), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            receiving.cancel()
            closed.cancel()
        self._drain(take)

    def close(self) -> None:
        """Close; what was sent still goes out, for a second at most."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=int(_LINGER_S * 1000))

    async def _handshake(self) -> None:
        failures = 0
        while True:
            event = await self._notice()
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return
            if event == zmq.EVENT_DISCONNECTED or event & _FAILED:
                failures += 1
            if failures >= HANDSHAKE_TRIES:
                raise HandshakeFailed

    async def _wait_closed(self) -> None:
        while await self._notice() != zmq.EVENT_DISCONNECTED:
            pass

    async def _receive(self, take: Callable[[wire.ToAgent], None]) -> None:
        while True:
            _decode(await self._socket.recv(), take)

    def _drain(self, take: Callable[[wire.ToAgent], None]) -> None:
        """The last words of a coordinator may lie behind the notice that its connection closed."""
        plain: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket)
        with suppress(zmq.Again):
            while True:
                _decode(plain.recv(zmq.DONTWAIT), take)

    async def _notice(self) -> int:
        return int(parse_monitor_message(await self._monitor.recv_multipart())["event"])


_FAILED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


def _socket(context: zmq.asyncio.Context, connection: Connection, keys: tuple[bytes, bytes]) -> zmq.asyncio.Socket:
    public, secret = keys
    socket = context.socket(zmq.DEALER)
    socket.curve_serverkey = connection.server_key.encode()
    socket.curve_publickey = public
    socket.curve_secretkey = secret
    socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME_BYTES)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.HEARTBEAT_IVL, int(_PING_S * 1000))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(_PING_LIMIT_S * 1000))
    socket.setsockopt(zmq.RECONNECT_IVL, int(_RETRY_S * 1000))
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, int(_RETRY_MAX_S * 1000))
    return socket


def _decode(frame: bytes, take: Callable[[wire.ToAgent], None]) -> None:
    try:
        message = wire.decode_at_agent(frame)
    except ProtocolError as error:
        log.warning("dropped what the coordinator sent: %s", error)
    else:
        take(message)
