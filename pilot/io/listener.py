"""Accepts connections, and keeps unproven ones few, small and short.

A connection is *unproven* until its owner calls :meth:`Listener.proven`. At most ``UNPROVEN_MAX`` are open at once;
beyond that, the oldest is closed once it is ``PATIENCE_S`` old. Each is closed after ``PROVE_LIMIT_S`` and may send no
more than ``UNPROVEN`` allows. So strangers cost a bounded amount of memory and descriptors, however many they are, and
a proven connection is never closed because of them. If the process runs out of descriptors, the listener logs that and
waits.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
from contextlib import suppress

from pilot.core.errors import UserError
from pilot.io.transport import Handler, Limits, Link

log = logging.getLogger(__name__)

UNPROVEN_MAX = 256
PROVE_LIMIT_S = 10.0
PATIENCE_S = 1.0
UNPROVEN = Limits(frame_bytes=4096, unsent_bytes=64 * 1024, rate_per_s=10, burst=10, in_all_bytes=16 * 1024)
"""An unproven peer has to send only one small frame."""

WARNED_EVERY_S = 10.0
"""How often to log that there are no descriptors left."""

_BACKLOG = 4096
_AT_ONCE = 32
_WAIT_S = 0.1
_OUT_OF = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class PortInUse(UserError):
    """Another process is listening on this port."""


class Listener:
    """A bound port, with its number in ``port``. :meth:`start` begins to accept connections."""

    def __init__(self, context: ssl.SSLContext, address: str, port: int) -> None:
        self._context = context
        self._socket = bound(address, port)
        self.port = int(self._socket.getsockname()[1])
        self._handler: Handler | None = None
        self._links: set[Link] = set()
        self._unproven: dict[Link, asyncio.TimerHandle] = {}
        self._attaching: set[asyncio.Task[None]] = set()
        self._waits: asyncio.TimerHandle | None = None
        self._warned_s = -WARNED_EVERY_S

    def start(self, handler: Handler) -> None:
        """Accept connections from now on, in the running event loop."""
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._listen()

    def proven(self, link: Link, limits: Limits) -> None:
        """``link`` has proven who it is: it may stay, and send within ``limits``."""
        if self._forget(link):
            link.allow(limits)

    def close(self) -> None:
        """Accept no more connections, and close the open ones after sending pending data."""
        if self._handler is not None:
            self._loop.remove_reader(self._socket)
        if self._waits is not None:
            self._waits.cancel()
        self._socket.close()
        for link in list(self._links):
            link.close()

    async def wait_closed(self) -> None:
        """After :meth:`close`: wait until all connections are closed."""
        while self._links:
            await asyncio.sleep(_WAIT_S / 10)

    # --- of its links ----------------------------------------------------------------------------------------------

    def received(self, link: Link, frame: bytes) -> None:
        """Hand on."""
        assert self._handler is not None
        self._handler.received(link, frame)

    def closed(self, link: Link, reason: str) -> None:
        """Hand on."""
        assert self._handler is not None
        self._links.discard(link)
        self._forget(link)
        self._handler.closed(link, reason)

    # --- accepting -------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        self._waits = None
        self._loop.add_reader(self._socket, self._accept)

    def _wait(self) -> None:
        self._loop.remove_reader(self._socket)
        self._waits = self._loop.call_later(_WAIT_S, self._listen)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._has_room():
                self._wait()
                return
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._not_accepted(error)
                return
            self._take(connection)

    def _has_room(self) -> bool:
        """Whether one more unproven connection fits; may close the oldest to make room."""
        if len(self._unproven) < UNPROVEN_MAX:
            return True
        oldest, timer = next(iter(self._unproven.items()))
        if timer.when() - self._loop.time() > PROVE_LIMIT_S - PATIENCE_S:
            return False
        self._expire(oldest, "it showed no token while others were waiting")
        return True

    def _not_accepted(self, error: OSError) -> None:
        if error.errno not in _OUT_OF:
            return  # the peer went away before it was accepted
        now_s = self._loop.time()
        if now_s - self._warned_s >= WARNED_EVERY_S:
            self._warned_s = now_s
            log.warning("cannot accept connections for now: %s; existing ones stay", error.strerror)
        self._wait()

    def _take(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        link = Link(self._context, self, UNPROVEN)
        self._links.add(link)
        why = f"it showed no token within {PROVE_LIMIT_S:g} s"
        self._unproven[link] = self._loop.call_later(PROVE_LIMIT_S, self._expire, link, why)
        task = self._loop.create_task(self._attach(link, connection))
        self._attaching.add(task)
        task.add_done_callback(self._attaching.discard)

    async def _attach(self, link: Link, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: link, connection)
        except OSError:  # closed by the peer meanwhile
            connection.close()
            self._links.discard(link)
            self._forget(link)

    def _expire(self, link: Link, reason: str) -> None:
        if self._forget(link):
            link.drop(reason)

    def _forget(self, link: Link) -> bool:
        """Remove ``link`` from the unproven ones; returns whether it was one of them."""
        timer = self._unproven.pop(link, None)
        if timer is not None:
            timer.cancel()
        return timer is not None


def bound(address: str, port: int) -> socket.socket:
    """A listening socket; :class:`UserError` if that fails, :class:`PortInUse` if the port is taken."""
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        made.listen(_BACKLOG)
        made.setblocking(False)
    except OSError as error:
        made.close()
        taken = error.errno == errno.EADDRINUSE
        reason = "the port is in use" if taken else error.strerror
        raise (PortInUse if taken else UserError)(
            f"cannot listen on {address}:{port}: {reason}; set another port or bind_address in the site file"
        ) from None
    return made


def allow_many_files() -> None:
    """Raise the soft limit of open files to the hard one: each pilot needs a descriptor."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
