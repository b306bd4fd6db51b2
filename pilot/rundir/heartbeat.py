"""The owner of a run directory, where hosts cannot see each other's locks.

On a shared file system ``flock`` may work only within one host (Lustre's ``localflock``, NFS's ``local_lock``), and
login nodes share run directories; so a lock of a library is not enough. The owner rewrites its line every
:data:`BEAT_S`. A process that finds a line written by another host watches it for :data:`PATIENCE_S` (clocks are never
compared). An owner that finds another one's line has lost its run directory.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import msgspec

BEAT_S = 5.0
PATIENCE_S = 3 * BEAT_S

LINE_BYTES = 400
"""The line has a fixed length, so that a single write replaces it and a reader never sees half of it."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Owner(msgspec.Struct, frozen=True):
    """A coordinator that owns a run directory."""

    pid: int
    host: str
    boot: str  #: identifies the host's boot
    beat: int = 0  #: number of its heartbeats
    left: bool = False  #: it does nothing more there, although its process may not have exited yet
    zero_s: float | None = None  #: time from the boot to 0 on the pool's clock; None: unknown

    @property
    def here(self) -> bool:
        """Whether it runs, or ran, on this host; then ``flock`` shows whether it is alive."""
        return self.host == socket.gethostname()

    def is_same(self, other: Owner) -> bool:
        """Return whether it is the same process."""
        return (self.pid, self.host, self.boot) == (other.pid, other.host, other.boot)

    def write(self, descriptor: int) -> None:
        """Write its line where all hosts can see it."""
        os.pwrite(descriptor, msgspec.json.encode(self).ljust(LINE_BYTES - 1) + b"\n", 0)
        os.fsync(descriptor)


def ourselves() -> Owner:
    """Return this process as an owner."""
    return Owner(os.getpid(), socket.gethostname(), _BOOT_ID.read_text().strip())


def since_boot_s() -> float:
    """Return the time since this host's boot; unlike the system's clock, nobody can set it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read(path: Path) -> Owner | None:
    """Return the owner in the file ``path``; None if there is none. The file is reopened, so that network file systems
    ask their server."""
    try:
        return parse(path.read_bytes()[:LINE_BYTES])
    except FileNotFoundError:
        return None


def parse(line: bytes) -> Owner | None:
    """Return the owner in ``line``; None if there is none."""
    try:
        return msgspec.json.decode(line, type=Owner)
    except msgspec.DecodeError:
        return None
