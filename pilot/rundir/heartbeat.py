"""Who owns a run directory, when hosts cannot see each other's locks.

On a shared file system ``flock`` may work only within one host (Lustre's ``localflock``, NFS's ``local_lock``), and
login nodes share run directories. So the owner rewrites its line every :data:`BEAT_S`. A process that finds a line
written by another host watches it for :data:`PATIENCE_S` (clocks are never compared). An owner that finds somebody
else's line has lost its run directory.
"""

from __future__ import annotations

import os
import re
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path

BEAT_S = 5.0
PATIENCE_S = 3 * BEAT_S

LINE_BYTES = 200
"""The line has a fixed length, so that a single write replaces it and a reader never sees half of it."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Owner:
    """A coordinator that owns a run directory.

    ``boot`` identifies the host's boot, ``beat`` is a counter. ``left``: it does nothing more there, although its
    process may not have exited yet. ``zero_s``: the pool's clock was 0 this long after the boot (None: not said).
    """

    pid: int
    host: str
    boot: str
    beat: int = 0
    left: bool = False
    zero_s: float | None = None

    @property
    def here(self) -> bool:
        """Whether it runs, or ran, on this host; then ``flock`` tells whether it is alive."""
        return self.host == socket.gethostname()

    def is_same(self, other: Owner) -> bool:
        """Whether it is the same process."""
        return (self.pid, self.host, self.boot) == (other.pid, other.host, other.boot)

    def later(self) -> Owner:
        """The same owner, one beat later."""
        return replace(self, beat=self.beat + 1)

    def write(self, descriptor: int) -> None:
        """Write its line where all hosts can see it."""
        line = f"{self.pid} on {self.host} boot {self.boot} beat {self.beat} left {'yes' if self.left else 'no'}"
        if self.zero_s is not None:
            line += f" zero {self.zero_s:.3f}"
        os.pwrite(descriptor, f"{line:<{LINE_BYTES - 1}.{LINE_BYTES - 1}}\n".encode(), 0)
        os.fsync(descriptor)


def ourselves() -> Owner:
    """This process."""
    return Owner(os.getpid(), socket.gethostname(), _BOOT_ID.read_text().strip())


def since_boot_s() -> float:
    """The time since this host's boot; unlike the system's clock, nobody can set it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read(path: Path) -> Owner | None:
    """Who wrote the line in ``path``; None: nobody. The file is reopened, so that network file systems ask their
    server."""
    try:
        return parse(path.read_bytes()[:LINE_BYTES])
    except FileNotFoundError:
        return None


def parse(line: bytes) -> Owner | None:
    """The owner named in ``line``; None if there is none."""
    match line.decode(errors="replace").split():
        case [pid, "on", host, *rest] if pid.isascii() and pid.isdigit():
            found = dict(zip(rest[::2], rest[1::2], strict=False))
            beat = found.get("beat", "0")
            count = int(beat) if beat.isascii() and beat.isdigit() else 0
            left, zero = found.get("left") == "yes", found.get("zero", "")
            zero_s = float(zero) if re.fullmatch(r"-?\d{1,12}\.\d{3}", zero, re.ASCII) else None
            return Owner(int(pid), host, found.get("boot", ""), count, left, zero_s)
    return None
