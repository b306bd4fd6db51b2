"""The coordinator's socket: a ROUTER with CURVE that hands on what arrives and tells when a connection closes.

A ROUTER does not report closed connections. The socket's monitor does, by file descriptor, and each frame tells on
which descriptor it came: together they say whose connection closed, some milliseconds after a peer was killed.
Descriptors are used again, so the monitor is always read before a frame of a connection that was not known yet.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from pilot.core.errors import ProtocolError, UserError
from pilot.io import wire

log = logging.getLogger(__name__)

REMEMBERED_S = 5.0
"""What a peer sent before its connection closed may be read after that: so long its link is remembered."""

WARNED_EVERY_S = 10.0
"""A peer with a wrong key tries again several times a second; so often the log tells of it."""

_FAILED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Keys(msgspec.Struct, frozen=True):
    """A CURVE key pair, Z85."""

    public: str
    secret: str

    @classmethod
    def make(cls) -> Keys:
        """A new pair."""
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())


@dataclass(frozen=True, slots=True)
class Peer:
    """One connection of a peer, as long as it lasts."""

    identity: bytes
    descriptor: int
    address: str


class Listener(Protocol):
    """Who is told what arrives."""

    def received(self, link: Peer, message: wire.FromAgent | wire.Request) -> None:
        """A message that decodes. Whether its sender may send it is not checked yet."""

    def closed(self, link: Peer) -> None:
        """The connection is gone: closed by the peer, or by the kernel when the peer was killed."""


class Server:
    """A bound ROUTER. ``port`` is the one that it got."""

    def __init__(self, keys: Keys, address: str, port: int) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.curve_server = True
        self._socket.curve_secretkey = keys.secret.encode()
        self._socket.curve_publickey = keys.public.encode()
        self._socket.linger = 500
        self._socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME_BYTES)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.IPV6, int(":" in address))
        self._monitor = self._socket.get_monitor_socket()
        self._notices: zmq.Socket[bytes] = zmq.Socket.shadow(self._monitor)
        self._open: set[int] = set()
        self._links: dict[bytes, Peer] = {}
        self._warned_s = -WARNED_EVERY_S
        try:
            self.port = self._bind(address, port)
        except BaseException:
            self.close()
            raise

    def _bind(self, address: str, port: int) -> int:
        host = f"[{address}]" if ":" in address else address
        try:
            self._socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            reason = "the port is in use" if error.errno == zmq.EADDRINUSE else error.strerror
            raise UserError(
                f"cannot listen on {address}:{port}: {reason}; set another port or bind_address in the site file"
            ) from None
        return int(self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    async def run(self, listener: Listener) -> None:
        """Hand on what arrives until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(listener))
            tasks.create_task(self._receive(listener))

    def send(self, link: Peer, message: wire.Message) -> bool:
        """Send to a peer; False where it is not connected any more (or takes nothing: then it is as good as gone)."""
        sent = self._socket.send_multipart([link.identity, wire.encode(message)], flags=zmq.DONTWAIT)
        assert isinstance(sent, asyncio.Future)  # done by now: with DONTWAIT it succeeds or fails at once
        return sent.exception() is None

    def refuse(self, link: Peer, reason: str) -> None:
        """Tell a peer why it is not taken, and the log too."""
        log.warning("refused a peer at %s: %s", link.address, reason)
        self.send(link, wire.Refused(reason))

    def close(self) -> None:
        """Close the socket. What was sent still goes out, for half a second at most."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
        self._context.term()

    # --- frames ----------------------------------------------------------------------------------------------------

    async def _receive(self, listener: Listener) -> None:
        while True:
            frames = await self._socket.recv_multipart(copy=False)
            link = self._link(listener, frames)
            if link is None:
                continue
            try:
                if len(frames) != 2:
                    raise ProtocolError(f"a message has one frame, not {len(frames) - 1}")
                message = wire.decode_at_coordinator(frames[1].bytes)
            except ProtocolError as error:
                self.refuse(link, str(error))
                continue
            listener.received(link, message)

    def _link(self, listener: Listener, frames: list[zmq.Frame]) -> Peer | None:
        """The connection that ``frames`` came on; None where it is closed already and was never known."""
        identity, descriptor = frames[0].bytes, int(frames[-1].get(zmq.SRCFD))
        known = self._links.get(identity)
        if known is not None and known.descriptor == descriptor:
            return known
        self._drain_monitor(listener)
        if descriptor not in self._open:
            return None
        link = self._links[identity] = Peer(identity, descriptor, str(frames[-1].get("Peer-Address")))
        return link

    # --- connections -----------------------------------------------------------------------------------------------

    async def _watch(self, listener: Listener) -> None:
        while True:
            await self._monitor.poll()
            self._drain_monitor(listener)

    def _drain_monitor(self, listener: Listener) -> None:
        with suppress(zmq.Again):
            while True:
                self._noticed(listener, self._notices.recv_multipart(zmq.DONTWAIT))

    def _noticed(self, listener: Listener, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)
        kind, value = event["event"], int(event["value"])
        if kind == zmq.EVENT_ACCEPTED:
            self._open.add(value)
        elif kind == zmq.EVENT_DISCONNECTED:
            self._open.discard(value)
            self._closed(listener, value)
        elif kind & _FAILED:
            self._warn_of_handshake()

    def _closed(self, listener: Listener, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        for link in [link for link in self._links.values() if link.descriptor == descriptor]:
            loop.call_later(REMEMBERED_S, self._forget, link)
            listener.closed(link)

    def _forget(self, link: Peer) -> None:
        if self._links.get(link.identity) is link:
            del self._links[link.identity]

    def _warn_of_handshake(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._warned_s >= WARNED_EVERY_S:
            self._warned_s = now_s
            log.warning("refused a peer whose key is wrong or that does not speak CURVE (an old connection file?)")
