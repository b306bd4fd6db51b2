"""One connection to the coordinator; it reports when it closes.

A link is discarded with its connection, so nothing queued for a dead coordinator reaches its successor unnoticed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pilot.core.errors import ProtocolError
from pilot.core.version import __version__
from pilot.io import transport, wire
from pilot.io.connection import Connection
from pilot.io.transport import Limits

log = logging.getLogger(__name__)

COORDINATOR = Limits(frame_bytes=wire.MAX_FRAME_BYTES, unsent_bytes=64 << 20, rate_per_s=5000, burst=50000)
"""Our own coordinator is trusted, but may have bugs."""


class Unreachable(Exception):
    """Nobody answered at the endpoint in time."""


class CoordinatorLink:
    """A connection to the coordinator. ``take`` is called with each message."""

    def __init__(self, connection: Connection, take: Callable[[wire.ToAgent], None]) -> None:
        self._connection = connection
        self._take = take
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._link: transport.Link | None = None

    async def open(self, limit_s: float) -> None:
        """Connect and show our token.

        Raises
        ------
        Unreachable
            No connection within ``limit_s``, or it was refused.
        NotTaken
            Another server answers there.
        """
        host, port = self._connection.address
        try:
            async with asyncio.timeout(limit_s):
                self._link = await transport.connect(host, port, self._connection.certificate, self, COORDINATOR)
        except OSError:  # TimeoutError is one
            raise Unreachable from None
        self.send(wire.Credentials(wire.PROTOCOL, __version__, self._connection.enrolment))

    def send(self, message: wire.Message) -> None:
        """Send; what is not sent before the connection closes is lost."""
        if self._link is not None:
            self._link.send(wire.encode(message))

    async def wait_closed(self) -> None:
        """Wait until the connection is closed; earlier messages were passed on. Raises what ``take`` raised."""
        await asyncio.shield(self._closed)

    def close(self) -> None:
        """Close after sending pending data, which may take a second at most."""
        if self._link is not None:
            self._link.close()

    # --- of the transport ------------------------------------------------------------------------------------------

    def received(self, link: transport.Link, frame: bytes) -> None:  # noqa: ARG002  # the protocol's signature
        """A frame arrived."""
        try:
            self._take(wire.decode_at_agent(frame))
        except ProtocolError as error:
            log.warning("dropped what the coordinator sent: %s", error)
        except Exception as error:  # asyncio would close the connection and continue
            if not self._closed.done():
                self._closed.set_exception(error)

    def closed(self, link: transport.Link, reason: str) -> None:  # noqa: ARG002  # the protocol's signature
        """The connection is closed."""
        if reason:
            log.warning("closed the connection to the coordinator: %s", reason)
        if not self._closed.done():
            self._closed.set_result(None)
