"""A listening port to which anybody may connect: unauthenticated connections are few and short.

A client is *unproven* until :meth:`Gate.passed` is called. At most ``UNPROVEN_MAX`` are open at once; beyond that, the
oldest is dropped once it is ``patience_s`` old. Each is dropped after ``limit_s``. So any number of unknown clients
costs a bounded amount of memory and descriptors, and a proven connection is never closed because of them. If the
process runs out of descriptors, that is logged, and the gate waits. (asyncio's servers have no such limits.)
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

log = logging.getLogger(__name__)

UNPROVEN_MAX = 256
OWN_FILES = 128
"""Descriptors reserved for this process's own files, its child processes, and users' commands."""

PROVE_LIMIT_S = 10.0
PATIENCE_S = 1.0

WARNED_EVERY_S = 10.0
"""How often to log that there are no descriptors left."""

OUT_OF = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of a process or host that has no descriptors or memory left, perhaps only for a moment."""

_BACKLOG = 4096
_AT_ONCE = 32
_WAIT_S = 0.1


class Client(Protocol):
    """An asyncio protocol: one accepted connection. It calls :meth:`Gate.gone` when its connection is closed."""

    def drop(self, reason: str) -> None:
        """Close at once, also if the connection has not been made yet."""


G = TypeVar("G", bound=Client)


class Gate(Generic[G]):
    """A socket that listens on ``port``. ``clients`` are the open connections.

    Parameters
    ----------
    limit_s : longest time for which a client may be unproven
    patience_s : the same while others wait
    """

    def __init__(
        self, address: str, port: int, *, limit_s: float = PROVE_LIMIT_S, patience_s: float = PATIENCE_S
    ) -> None:
        self._limit_s, self._patience_s = limit_s, patience_s
        self._socket = _bound(address, port)
        self.port = int(self._socket.getsockname()[1])
        self.unproven_max = min(UNPROVEN_MAX, files_max() // 4)
        self.clients: set[G] = set()
        self._make: Callable[[], G] | None = None
        self._unproven: dict[G, asyncio.TimerHandle] = {}
        self._attaching: set[asyncio.Task[None]] = set()
        self._waits: asyncio.TimerHandle | None = None
        self._warned_s = -WARNED_EVERY_S

    def start(self, make: Callable[[], G]) -> None:
        """Accept connections from now on, in the running event loop; ``make`` returns a client for each."""
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._listen()

    @property
    def unproven(self) -> int:
        """The number of unproven clients."""
        return len(self._unproven)

    def passed(self, client: G) -> bool:
        """Record that ``client`` has authenticated and may stay; returns whether it was unproven."""
        timer = self._unproven.pop(client, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def gone(self, client: G) -> None:
        """Record that the connection of ``client`` is closed."""
        self.clients.discard(client)
        self.passed(client)

    def close(self) -> None:
        """Accept no more connections; open ones stay. Idempotent."""
        if self._make is not None and self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
        if self._waits is not None:
            self._waits.cancel()
        self._socket.close()

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
        """Return whether one more unproven connection fits; may drop the oldest to make room."""
        if len(self._unproven) < self.unproven_max:
            return True
        oldest, timer = next(iter(self._unproven.items()))
        if timer.when() - self._loop.time() > self._limit_s - self._patience_s:
            return False
        self._expire(oldest, "it did not show who it is while others were waiting")
        return True

    def _not_accepted(self, error: OSError) -> None:
        if error.errno not in OUT_OF:
            return  # the peer went away before it was accepted
        now_s = self._loop.time()
        if now_s - self._warned_s >= WARNED_EVERY_S:
            self._warned_s = now_s
            log.warning("cannot accept connections for now: %s; existing ones stay", error.strerror)
        self._wait()

    def _take(self, connection: socket.socket) -> None:
        assert self._make is not None
        connection.setblocking(False)
        client = self._make()
        self.clients.add(client)
        why = f"it did not show who it is within {self._limit_s:g} s"
        self._unproven[client] = self._loop.call_later(self._limit_s, self._expire, client, why)
        task = self._loop.create_task(self._attach(client, connection))
        self._attaching.add(task)
        task.add_done_callback(self._attaching.discard)

    async def _attach(self, client: G, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: client, connection)  # type: ignore[type-var]  # a client is a protocol
        except OSError:  # closed by the peer meanwhile
            connection.close()
            self.gone(client)

    def _expire(self, client: G, reason: str) -> None:
        if self.passed(client):
            client.drop(reason)


def _bound(address: str, port: int) -> socket.socket:
    """Return a listening socket; OSError if that fails."""
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        made.listen(_BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def files_max() -> int:
    """Return the most files that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def lasting_max() -> int:
    """Return the most proven connections that leave descriptors for unproven ones and for the process's own files."""
    most = files_max()
    return most - min(UNPROVEN_MAX, most // 4) - min(OWN_FILES, most // 4)


def allow_many_files() -> None:
    """Raise the soft limit of open files to the hard one: each pilot needs a descriptor."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
