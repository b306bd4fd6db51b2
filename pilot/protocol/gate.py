"""A bound port at which anybody may knock: connections that have proven nothing are few and short.

A guest is *unproven* until its owner says that it has :meth:`Gate.passed`. At most ``UNPROVEN_MAX`` are open at once;
beyond that, the oldest is dropped once it is ``patience_s`` old. Each is dropped after ``limit_s``. So strangers cost a
bounded amount of memory and descriptors, however many they are, and a proven connection is never closed because of
them. If the process runs out of descriptors, that is logged, and the gate waits.
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
"""Descriptors kept for this process's own files, its child processes, and users' commands."""

PROVE_LIMIT_S = 10.0
PATIENCE_S = 1.0

WARNED_EVERY_S = 10.0
"""How often to log that there are no descriptors left."""

OUT_OF = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of a process or host that has no descriptors or memory left, perhaps only for a moment."""

_BACKLOG = 4096
_AT_ONCE = 32
_WAIT_S = 0.1


class Guest(Protocol):
    """An asyncio protocol: one accepted connection. It calls :meth:`Gate.gone` when its connection is closed."""

    def drop(self, reason: str) -> None:
        """Close at once, also if the connection has not been made yet."""


G = TypeVar("G", bound=Guest)


class Gate(Generic[G]):
    """A listening socket, with its number in ``port``. ``guests`` are the open connections.

    Parameters
    ----------
    limit_s : how long a guest may stay unproven
    patience_s : how long it may while others wait
    """

    def __init__(
        self, address: str, port: int, *, limit_s: float = PROVE_LIMIT_S, patience_s: float = PATIENCE_S
    ) -> None:
        self._limit_s, self._patience_s = limit_s, patience_s
        self._socket = _bound(address, port)
        self.port = int(self._socket.getsockname()[1])
        self.unproven_max = min(UNPROVEN_MAX, files_max() // 4)
        self.guests: set[G] = set()
        self._make: Callable[[], G] | None = None
        self._unproven: dict[G, asyncio.TimerHandle] = {}
        self._attaching: set[asyncio.Task[None]] = set()
        self._waits: asyncio.TimerHandle | None = None
        self._warned_s = -WARNED_EVERY_S

    def start(self, make: Callable[[], G]) -> None:
        """Accept connections from now on, in the running event loop; ``make`` a guest of each."""
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._listen()

    @property
    def unproven(self) -> int:
        """How many guests have proven nothing yet."""
        return len(self._unproven)

    def passed(self, guest: G) -> bool:
        """``guest`` has proven who it is and may stay; returns whether it had not before."""
        timer = self._unproven.pop(guest, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def gone(self, guest: G) -> None:
        """The connection of ``guest`` is closed."""
        self.guests.discard(guest)
        self.passed(guest)

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
        """Whether one more unproven connection fits; may drop the oldest to make room."""
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
        guest = self._make()
        self.guests.add(guest)
        why = f"it did not show who it is within {self._limit_s:g} s"
        self._unproven[guest] = self._loop.call_later(self._limit_s, self._expire, guest, why)
        task = self._loop.create_task(self._attach(guest, connection))
        self._attaching.add(task)
        task.add_done_callback(self._attaching.discard)

    async def _attach(self, guest: G, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: guest, connection)  # type: ignore[type-var]  # a guest is a protocol
        except OSError:  # closed by the peer meanwhile
            connection.close()
            self.gone(guest)

    def _expire(self, guest: G, reason: str) -> None:
        if self.passed(guest):
            guest.drop(reason)


def _bound(address: str, port: int) -> socket.socket:
    """A listening socket; OSError if that fails."""
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
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def lasting_max() -> int:
    """How many proven connections a process may have if strangers and its own files shall always find a place."""
    most = files_max()
    return most - min(UNPROVEN_MAX, most // 4) - min(OWN_FILES, most // 4)


def allow_many_files() -> None:
    """Raise the soft limit of open files to the hard one: each pilot needs a descriptor."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
