"""Shared memory of a worker and its rank process: anonymous files that disappear with their last user."""

from __future__ import annotations

import fcntl
import mmap
import os

from pilot.core.errors import ProtocolError

ALIGN_BYTES = 64
"""Everything in an arena starts at a multiple of this, a cache line; enough for every dtype."""


def aligned(size: int) -> int:
    """``size`` rounded up to a multiple of ``ALIGN_BYTES``."""
    return -(-size // ALIGN_BYTES) * ALIGN_BYTES


class Arena:
    """A memfd and its mapping. It has no name in ``/dev/shm`` or on a disk, so a SIGKILL leaves nothing behind.

    Parameters
    ----------
    fd : the descriptor, owned by the arena from now on
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        try:
            self.size = os.fstat(fd).st_size
            self.memory = mmap.mmap(fd, self.size)
        except (OSError, ValueError):
            self.close_fd()
            raise

    @classmethod
    def received(cls, fd: int) -> Arena:
        """An arena made by another process; :class:`ProtocolError` if it could fail in the middle of a sum, because it
        is not memory, or because its maker could shrink it.
        """
        try:
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                return cls(fd)
        except (OSError, ValueError):
            raise ProtocolError("received a descriptor that is not shared memory") from None
        os.close(fd)
        raise ProtocolError("received a descriptor of memory that could be shrunk")

    @classmethod
    def of_size(cls, size: int) -> Arena:
        """A new arena of at least ``size`` bytes, all zero."""
        fd = os.memfd_create("pilot-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, max(aligned(size), ALIGN_BYTES))
        except OSError:
            os.close(fd)
            raise
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return cls(fd)

    def close_fd(self) -> None:
        """Close the descriptor; the mapping lives as long as something uses it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
