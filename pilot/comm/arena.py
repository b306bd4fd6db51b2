"""Shared memory between a worker and its rank process: anonymous files that vanish with their last user."""

from __future__ import annotations

import mmap
import os

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
        self.size = os.fstat(fd).st_size
        self.memory = mmap.mmap(fd, self.size)

    @classmethod
    def of_size(cls, size: int) -> Arena:
        """A new arena of at least ``size`` bytes, all zero."""
        fd = os.memfd_create("pilot-arena", os.MFD_CLOEXEC)
        os.ftruncate(fd, max(aligned(size), ALIGN_BYTES))
        return cls(fd)

    def close_fd(self) -> None:
        """Give up the descriptor; the mapping lives as long as something looks into it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
