"""The socket between a worker and a rank process: packets, which may carry one file descriptor."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Sequence
from pathlib import Path

from pilot.comm.messages import DOORBELL, AnyNote, decode, encode

MAX_PACKET_BYTES = 128 * 1024
"""Below Linux's default limit for a packet on a Unix socket (about 200 kB)."""
WORD_BYTES = 9
"""The most that a number of 64 bits takes in a packet, or the beginning of a list of them."""


class PeerGone(Exception):  # expected, so not a PilotError: peers are killed at any moment
    """The other end of the channel is closed."""


def listen(path: Path) -> socket.socket:
    """A socket on which a worker listens for its rank processes."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen(8)
    return listener


class Channel:
    """One end of the connection between a worker and a rank process."""

    def __init__(self, peer: socket.socket) -> None:
        self._socket = peer

    @classmethod
    def connect(cls, path: Path) -> Channel:
        """Connect to the worker that listens on ``path``."""
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.connect(str(path))
        return cls(peer)

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Two connected ends in one process."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    def fileno(self) -> int:
        """The descriptor, for ``select``."""
        return self._socket.fileno()

    def ring(self) -> None:
        """Send one ``DOORBELL``."""
        try:
            self._socket.send(DOORBELL, socket.MSG_NOSIGNAL)
        except OSError:
            raise PeerGone from None

    def send(self, note: AnyNote, fd: int | None = None) -> None:
        """Send a note, with a descriptor if given (the sender keeps its own)."""
        try:
            socket.send_fds(self._socket, [encode(note)], [] if fd is None else [fd], socket.MSG_NOSIGNAL)
        except OSError:
            raise PeerGone from None

    def receive(self) -> tuple[AnyNote | None, int | None]:
        """Wait for one packet: (note, descriptor or None), or (None, None) for a ``DOORBELL``.

        Raises :class:`~pilot.core.errors.ProtocolError` if it is neither; then no descriptor stays open.
        """
        try:
            packet, fds, _, _ = socket.recv_fds(self._socket, MAX_PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            raise PeerGone from None
        try:
            if not packet:
                raise PeerGone
            note = None if packet == DOORBELL else decode(packet)
            fd = fds.pop() if fds and note is not None else None
            return note, fd
        finally:
            for unwanted in fds:
                os.close(unwanted)

    def hang_up(self) -> None:
        """Send nothing more, so that the other end stops; we can still see it close."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end; the other end sees that at once."""
        self._socket.close()


def ready(channels: Sequence[Channel], timeout_s: float | None = None) -> list[Channel]:
    """Wait, at most ``timeout_s``, for channels that have something to receive, or are closed, and return them."""
    if timeout_s is None and len(channels) == 1:
        return list(channels)  # receiving will wait
    return select.select(channels, [], [], timeout_s)[0]  # poll sleeps whole milliseconds


def close_inherited(fd: int) -> None:
    """Close a descriptor in a forked child; it may be closed already."""
    with contextlib.suppress(OSError):
        os.close(fd)
