"""The coordinator's port: checks a peer's token, then passes on its messages, and reports when it is gone.

A connection is unproven until its first frame, :class:`pilot.protocol.wire.Credentials`, has a valid token. That frame
is small, and nothing else is decoded before it. A pilot's connection stays unproven until the pilot is registered
(:meth:`Server.keep`): a token alone holds no place. Until then the limits of :mod:`pilot.protocol.gate` apply;
beyond them a connection is closed without a message, so that an honest agent tries again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pilot.core.errors import ProtocolError, UserError
from pilot.core.version import __version__
from pilot.protocol import wire
from pilot.protocol.allowance import Allowance
from pilot.protocol.connection import Certificate
from pilot.protocol.gate import Gate, lasting_max
from pilot.protocol.transport import Handler, Limits, Link
from pilot.service.agents.admission import Grant, Role

if TYPE_CHECKING:
    from pilot.service.service import Service

log = logging.getLogger(__name__)

PILOT = Limits(frame_bytes=1 << 20, unsent_bytes=16 << 20, rate_per_s=500, burst=5000)
USER = Limits(frame_bytes=wire.MAX_FRAME_BYTES, unsent_bytes=16 << 20, rate_per_s=500, burst=5000)

STRANGERS_WARNED_PER_S, KNOWN_WARNED_PER_S = 0.1, 1.0
KNOWN_WARNED_AT_ONCE = 20
"""Limits of the log's lines about refused peers, however often they connect."""

Admit = Callable[[str], Grant | None]
"""Returns the grant of a token."""


UNPROVEN = Limits(frame_bytes=4096, unsent_bytes=64 * 1024, rate_per_s=10, burst=10, in_all_bytes=16 * 1024)
"""An unproven peer has to send only one small frame."""

_CLOSED_EVERY_S = 0.01


class PortInUse(UserError):
    """Another process is listening on this port."""


class Listener:
    """A bound port, with its number in ``port``. :meth:`start` begins to accept TLS connections behind a
    :class:`~pilot.protocol.gate.Gate`.

    Before its owner calls :meth:`proven`, a connection may send no more than ``UNPROVEN`` allows.
    """

    def __init__(self, context: ssl.SSLContext, address: str, port: int) -> None:
        self._context = context
        self._gate: Gate[Link] = gate_at(address, port)
        self.port = self._gate.port
        self._lasting_max = lasting_max()
        self._handler: Handler | None = None

    def start(self, handler: Handler) -> None:
        """Accept connections from now on, in the running event loop."""
        self._handler = handler
        self._gate.start(lambda: Link(self._context, self, UNPROVEN))

    @property
    def is_full(self) -> bool:
        """Whether as many proven connections are open as there are descriptors to spare for them."""
        return len(self._gate.clients) - self._gate.unproven >= self._lasting_max

    def proven(self, link: Link, limits: Limits) -> None:
        """``link`` has proven who it is: it may stay, and send within ``limits``."""
        if self._gate.passed(link):
            link.allow(limits)

    def close(self) -> None:
        """Accept no more connections, and close the open ones after sending pending data: a second at most."""
        self._gate.close()
        for link in list(self._gate.clients):
            link.close()

    async def wait_closed(self) -> None:
        """After :meth:`close`: wait until all connections are closed."""
        while self._gate.clients:
            await asyncio.sleep(_CLOSED_EVERY_S)

    # --- of its links ----------------------------------------------------------------------------------------------

    def received(self, link: Link, frame: bytes) -> None:
        """Pass a frame on to the handler."""
        assert self._handler is not None
        self._handler.received(link, frame)

    def closed(self, link: Link, reason: str) -> None:
        """Pass the end of a connection on to the handler."""
        assert self._handler is not None
        self._gate.gone(link)
        self._handler.closed(link, reason)


def gate_at(address: str, port: int) -> Gate[Link]:
    """A gate there; :class:`UserError` if that fails, :class:`PortInUse` if the port is taken."""
    try:
        return Gate(address, port)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        reason = "the port is in use" if taken else error.strerror
        raise (PortInUse if taken else UserError)(
            f"cannot listen on {address}:{port}: {reason}; set another port or bind_address in the site file"
        ) from None


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """A connection of a peer that has shown a valid token."""

    link: Link
    grant: Grant


class Server(Listener):
    """The coordinator's port, with its number in ``port``."""

    def __init__(self, certificate: Certificate, address: str, port: int) -> None:
        super().__init__(certificate.server_context(), address, port)
        self._peers: dict[Link, Peer] = {}
        self._unnamed: set[Peer] = set()
        self._sent: tuple[wire.Sent | None, int, bytes] = (None, 0, b"")

    async def run(self, receiver: Service, admit: Admit) -> None:
        """Pass on what arrives until cancelled, or until ``receiver`` raises; its exception is raised here."""
        self._receiver, self._admit = receiver, admit
        loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = loop.create_future()
        self._strangers_warned = Allowance(STRANGERS_WARNED_PER_S, 1, loop.time())
        self._known_warned = Allowance(KNOWN_WARNED_PER_S, KNOWN_WARNED_AT_ONCE, loop.time())
        self.start(self)
        await self._failure

    def send(self, peer: Peer, message: wire.Sent, event: int = 0) -> bool:
        """Send to a peer; False if it is no longer connected (or does not read, which amounts to the same). ``event``
        is the number of the journal entry that caused the message."""
        if message is not self._sent[0] or event != self._sent[1]:  # one to all members of a group is encoded once
            self._sent = (message, event, wire.encode(message, event))
        return peer.link.send(self._sent[2])

    def keep(self, peer: Peer, before: Peer | None) -> bool:
        """A pilot has registered on ``peer``, which may stay; its connection ``before`` is closed. False if there is no
        place: ``peer`` is closed.
        """
        if before is not None and before is not peer:
            before.link.close()
        elif before is None and self.is_full:
            self.drop(peer, "no more pilots, the other open files are needed here; raise the limit (ulimit -n)")
            return False
        self._unnamed.discard(peer)
        self.proven(peer.link, PILOT)
        return True

    def drop(self, peer: Peer, reason: str = "") -> None:
        """Close a peer's connection after sending pending data; the log gets the ``reason``."""
        peer.link.close(reason)

    def refuse(self, peer: Peer, reason: str) -> None:
        """Tell a peer, and the log, why it is refused, and close its connection."""
        self._refuse(peer.link, reason, known=True)

    # --- of its links ----------------------------------------------------------------------------------------------

    def received(self, link: Link, frame: bytes) -> None:
        """A frame arrived."""
        peer = self._peers.get(link)
        try:
            if peer is None:
                self._shown(link, wire.decode_credentials(frame))
            elif peer.grant.role is Role.USER:
                self._receiver.received(peer, wire.decode_from_cli(frame))
            else:
                self._receiver.received(peer, wire.decode_from_agent(frame))
        except ProtocolError as error:
            self._refuse(link, str(error), known=peer is not None)
        except Exception as error:  # asyncio would close the connection and continue
            self._fail(error)

    def closed(self, link: Link, reason: str) -> None:
        """A connection was closed."""
        self._gate.gone(link)
        peer = self._peers.pop(link, None)
        if reason:
            self._warn(link, reason, known=peer is not None)
        if peer is not None:
            self._unnamed.discard(peer)
            try:
                self._receiver.closed(peer)
            except Exception as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    def _shown(self, link: Link, shown: wire.Credentials) -> None:
        grant = self._admit(shown.token)
        if grant is None:
            self._refuse(
                link, "wrong token: the connection file is not this coordinator's, or its job has ended", known=False
            )
        elif shown.protocol != wire.PROTOCOL or (grant.role is Role.PILOT and shown.version != __version__):
            theirs, ours = f"{shown.version} (protocol {shown.protocol})", f"{__version__} (protocol {wire.PROTOCOL})"
            role = "client" if grant.role is Role.USER else grant.role.value
            self._refuse(link, f"version mismatch: {role} {theirs}, coordinator {ours}", known=True)
        elif grant.role is Role.USER:
            self._peers[link] = Peer(link, grant)
            self.proven(link, USER)
        elif sum(peer.grant is grant for peer in self._unnamed) >= grant.unnamed_max:
            link.drop(f"{grant.unnamed_max} connections have shown its token and are no pilots yet")
        else:
            self._peers[link] = peer = Peer(link, grant)
            self._unnamed.add(peer)
            link.allow(PILOT)

    def _refuse(self, link: Link, reason: str, *, known: bool) -> None:
        self._warn(link, reason, known=known)
        link.send(wire.encode(wire.Refused(reason)))
        link.close()

    def _warn(self, link: Link, reason: str, *, known: bool) -> None:
        """Log it, but strangers only from time to time, and known peers not in masses."""
        now_s = asyncio.get_running_loop().time()
        if (self._known_warned if known else self._strangers_warned).allows(now_s):
            log.warning("refused a peer at %s: %s", link.address, reason)
