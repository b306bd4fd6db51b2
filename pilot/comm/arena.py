"""Shared memory between a worker and its rank process: anonymous files that vanish with their last user."""

from __future__ import annotations

import fcntl
import mmap
import os

from pilot.core.errors import ProtocolError

ALIGN_BYTES = 64
"""Everything in an arena starts at a multiple of this: a cache line, and enough for every dtype."""


def aligned(size: int) -> int:
    """``size`` rounded up to a multiple of ``ALIGN_BYTES``."""
    return -(-size // ALIGN_BYTES) * ALIGN_BYTES


class Arena:
    """A memfd and its mapping. Nothing in ``/dev/shm`` or on a disk names it, so nothing is left by a SIGKILL.

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
        """One that another process made; :class:`ProtocolError` where that could fail us in the middle of a sum: what
        is no memory, and what its maker could cut while we look into it.
        """
        try:
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                return cls(fd)
        except (OSError, ValueError):
            raise ProtocolError("a descriptor came that is no shared memory") from None
        os.close(fd)
        raise ProtocolError("a descriptor came whose memory can be cut")

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
        """Give up the descriptor; the mapping lives as long as something looks into it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
