"""Accepts TLS connections behind a :class:`~pilot.io.gate.Gate`, and keeps unproven ones small.

Before its owner calls :meth:`Listener.proven`, a connection may send no more than ``UNPROVEN`` allows.
"""

from __future__ import annotations

import asyncio
import errno
import ssl

from pilot.core.errors import UserError
from pilot.io.gate import Gate, lasting_max
from pilot.io.transport import Handler, Limits, Link

UNPROVEN = Limits(frame_bytes=4096, unsent_bytes=64 * 1024, rate_per_s=10, burst=10, in_all_bytes=16 * 1024)
"""An unproven peer has to send only one small frame."""

_CLOSED_EVERY_S = 0.01


class PortInUse(UserError):
    """Another process is listening on this port."""


class Listener:
    """A bound port, with its number in ``port``. :meth:`start` begins to accept connections."""

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
        return len(self._gate.guests) - self._gate.unproven >= self._lasting_max

    def proven(self, link: Link, limits: Limits) -> None:
        """``link`` has proven who it is: it may stay, and send within ``limits``."""
        if self._gate.passed(link):
            link.allow(limits)

    def close(self) -> None:
        """Accept no more connections, and close the open ones after sending pending data."""
        self._gate.close()
        for link in list(self._gate.guests):
            link.close()

    async def wait_closed(self) -> None:
        """After :meth:`close`: wait until all connections are closed."""
        while self._gate.guests:
            await asyncio.sleep(_CLOSED_EVERY_S)

    # --- of its links ----------------------------------------------------------------------------------------------

    def received(self, link: Link, frame: bytes) -> None:
        """Hand on."""
        assert self._handler is not None
        self._handler.received(link, frame)

    def closed(self, link: Link, reason: str) -> None:
        """Hand on."""
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
