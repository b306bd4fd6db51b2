"""The connection to the coordinator, also across restarts: connect, register, heartbeat, register again.

Messages sent while there is no coordinator are queued until the next ``Welcome``.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pilot.core.errors import ProtocolError, UserError
from pilot.core.version import __version__
from pilot.protocol import connection, transport, wire
from pilot.protocol.connection import Connection
from pilot.protocol.transport import Limits, WrongServer

log = logging.getLogger(__name__)

_TRY_S = 10.0
_RETRY_S = 0.5
"""Half of it is random, so that agents that lost the same coordinator do not all come back at once."""

_REREAD_S = 1.0
"""How often to read the connection file during an attempt: a server at an old address may simply not answer."""

_FIRST_BEAT_S = 1.0


class CoordinatorClient:
    """The agent's connection, for the agent's whole life.

    Parameters
    ----------
    hello : creates the message with which it registers, each time
    beat : creates each heartbeat
    take : called with each message from the coordinator
    lost : called when a connection has closed
    over : called with the reason, repeatedly, when the pool is known to be over
    """

    def __init__(
        self,
        whereabouts: Whereabouts,
        hello: Callable[[], wire.Hello],
        beat: Callable[[], wire.Heartbeat],
        take: Callable[[wire.ToAgent], None],
        lost: Callable[[], None],
        over: Callable[[str], None],
    ) -> None:
        self._whereabouts = whereabouts
        self._hello = hello
        self._make_beat = beat
        self._take = take
        self._lost = lost
        self._over = over
        self._link: CoordinatorLink | None = None
        self._welcome: wire.Welcome | None = None
        self._unsent: deque[wire.Message] = deque()
        self.joined = asyncio.Event()

    async def run(self) -> None:
        """Stay connected until cancelled; :class:`UserError` if another server answers."""
        while True:
            self._link = await self._connect()
            self._link.send(self._hello())
            beats = asyncio.create_task(self._beat())
            try:
                await self._link.wait_closed()
            finally:
                beats.cancel()
                self._drop_link()
            log.warning("the connection to the coordinator closed; connecting again")
            self._lost()

    def send(self, message: wire.Message) -> None:
        """Send now, or as soon as the coordinator is back."""
        if self._link is not None and self._welcome is not None:
            self._link.send(message)
        else:
            self._unsent.append(message)

    async def close(self) -> None:
        """Close for good, after sending pending data, which may take a second at most."""
        link = self._link
        self._drop_link()
        if link is not None:
            with suppress(Exception):  # run has already raised it
                await link.wait_closed()

    async def _connect(self) -> CoordinatorLink:
        """Connect to the address now in the connection file; an old address may belong to another server."""
        while (link := await self._try_at(self._whereabouts.now)) is None:
            self._reread()
            await asyncio.sleep(random.uniform(_RETRY_S / 2, _RETRY_S))
        return link

    async def _try_at(self, where: Connection) -> CoordinatorLink | None:
        """Return a link to ``where``; None if that fails, or if the file has another address by now."""
        link = CoordinatorLink(where, self._taken)
        opening = asyncio.create_task(link.open(_TRY_S))
        try:
            while not (await asyncio.wait({opening}, timeout=_REREAD_S))[0]:
                self._reread()
                if self._whereabouts.now != where:
                    return None
            opening.result()
        except OSError:  # no connection in time, or it was refused
            return None
        except WrongServer as failure:
            if self.joined.is_set():  # another server may have got the old port
                return None
            raise UserError(
                f"the server at {where.endpoint} is not this pool's coordinator ({failure}); copy the connection file "
                "of the running pool"
            ) from None
        finally:
            opening.cancel()
        return link

    def _reread(self) -> None:
        if over := self._whereabouts.update():
            self._over(over)

    def _taken(self, message: wire.ToAgent) -> None:
        if isinstance(message, wire.Welcome):
            self._welcome = message
            self.joined.set()
        self._take(message)
        while self._welcome is not None and self._link is not None and self._unsent:
            self._link.send(self._unsent.popleft())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._welcome.heartbeat_s if self._welcome is not None else _FIRST_BEAT_S)
            if self._link is not None and self._welcome is not None:
                self._link.send(self._make_beat())

    def _drop_link(self) -> None:
        self._welcome = None
        if self._link is not None:
            self._link.close()
            self._link = None


COORDINATOR = Limits(frame_bytes=wire.MAX_FRAME_BYTES, unsent_bytes=64 << 20, rate_per_s=5000, burst=50000)
"""Our own coordinator is trusted, but may have bugs."""


class CoordinatorLink:
    """A connection to the coordinator. ``take`` is called with each message.

    It is discarded with its connection, so nothing queued for a dead coordinator reaches its successor unnoticed.
    """

    def __init__(self, connection: Connection, take: Callable[[wire.ToAgent], None]) -> None:
        self._connection = connection
        self._take = take
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._link: transport.Link | None = None

    async def open(self, limit_s: float) -> None:
        """Connect within ``limit_s`` and show our token; see :func:`pilot.protocol.transport.connect`."""
        host, port = self._connection.address
        async with asyncio.timeout(limit_s):
            self._link = await transport.connect(host, port, self._connection.certificate, self, COORDINATOR)
        self.send(wire.Credentials(wire.PROTOCOL, __version__, self._connection.enrolment))

    def send(self, message: wire.Message) -> None:
        """Send; what is not sent before the connection closes is lost."""
        if self._link is not None:
            self._link.send(wire.encode(message))

    async def wait_closed(self) -> None:
        """Wait until the connection is closed; earlier messages were passed on. Raises an error of ``take``."""
        await asyncio.shield(self._closed)

    def close(self) -> None:
        """Close after sending pending data, which may take a second at most."""
        if self._link is not None:
            self._link.close()

    # --- of the transport ------------------------------------------------------------------------------------------

    def received(self, link: transport.Link, frame: bytes) -> None:  # noqa: ARG002  # the protocol's signature
        """A frame arrived."""
        try:
            message, event = wire.decode_with_event(frame)
            if event:
                log.info("%s: %s (event %d)", getattr(message, "trainer", "the node"), type(message).__name__, event)
            self._take(message)
        except ProtocolError as error:
            log.warning("dropped a message of the coordinator: %s", error)
        except Exception as error:  # asyncio would close the connection and continue
            if not self._closed.done():
                self._closed.set_exception(error)

    def closed(self, link: transport.Link, reason: str) -> None:  # noqa: ARG002  # the protocol's signature
        """The connection is closed."""
        if reason:
            log.warning("closed the connection to the coordinator: %s", reason)
        if not self._closed.done():
            self._closed.set_result(None)


GONE_S = 10.0
"""A file missing for this long was removed; on a shared file system it may be invisible for a moment."""


class Whereabouts:
    """Finds the coordinator: rereads the connection file after the connection was lost.

    A restarted coordinator may have another port, or be on another host. If the file belongs to another pool, or was
    removed, our pool is over. ``file`` is the connection file, ``now`` its last content that belonged to our pool.

    The constructor reads it; :class:`UserError` if that fails.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.now: Connection = connection.load(file)
        self._found = self.now
        self._missing_since_s: float | None = None
        self._reader: threading.Thread | None = None

    def update(self) -> str:
        """Return why our pool is over, according to the last reading, or "" if it may come back; begin to read again.

        Never blocks: a hanging file system must not keep an agent from watching its lease.
        """
        over = self._over(time.monotonic())
        if not over:
            self.now = self._found
        if self._reader is None or not self._reader.is_alive():
            with suppress(RuntimeError):  # no thread can be started now
                reader = threading.Thread(target=self._read, daemon=True)
                reader.start()
                self._reader = reader
        return over

    def _over(self, now_s: float) -> str:
        if self._missing_since_s is not None and now_s - self._missing_since_s >= GONE_S:
            return f"its pool has ended: {self.file} was removed"
        ours, found = self.now, self._found
        if (found.coordinator, found.certificate) != (ours.coordinator, ours.certificate):
            return f"its pool has ended: {self.file} now belongs to pool {found.coordinator}"
        return ""

    def _read(self) -> None:
        try:
            self._found, self._missing_since_s = connection.load(self.file), None
        except UserError:
            self._check_missing()

    def _check_missing(self) -> None:
        """Record whether the file is missing. Any other problem with it or its file system may pass."""
        try:
            self.file.stat()
        except FileNotFoundError:
            self._missing_since_s = self._missing_since_s or time.monotonic()
        except OSError:
            pass
        else:
            self._missing_since_s = None
