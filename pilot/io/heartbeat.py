"""Who owns a run directory, for hosts that do not see each other's locks.

``flock`` on a shared file system may hold on one host only (Lustre's ``localflock``, NFS's ``local_lock``), and login
nodes share run directories. So the owner writes its line again every :data:`BEAT_S`. Who finds the line of another host
watches it for :data:`PATIENCE_S`: clocks are not compared. An owner that finds another one's line has lost.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path

BEAT_S = 5.0
PATIENCE_S = 3 * BEAT_S

LINE_BYTES = 200
"""The line has one length, so that it replaces an earlier one in one write: a reader never finds half of it."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Owner:
    """A coordinator that owns a run directory. ``boot`` tells apart lives of a host, ``beat`` counts.

    ``left``: it does nothing more there, though its process may still be ending.
    """

    pid: int
    host: str
    boot: str
    beat: int = 0
    left: bool = False

    @property
    def here(self) -> bool:
        """Whether it is, or was, on this host: then ``flock`` tells whether it lives."""
        return self.host == socket.gethostname()

    def is_same(self, other: Owner) -> bool:
        """Whether it is the same process."""
        return (self.pid, self.host, self.boot) == (other.pid, other.host, other.boot)

    def later(self) -> Owner:
        """A beat later."""
        return replace(self, beat=self.beat + 1)

    def write(self, descriptor: int) -> None:
        """Write its line, for all hosts to see."""
        line = f"{self.pid} on {self.host} boot {self.boot} beat {self.beat} left {'yes' if self.left else 'no'}"
        os.pwrite(descriptor, f"{line:<{LINE_BYTES - 1}.{LINE_BYTES - 1}}\n".encode(), 0)
        os.fsync(descriptor)


def ourselves() -> Owner:
    """This process."""
    return Owner(os.getpid(), socket.gethostname(), _BOOT_ID.read_text().strip())


def read(path: Path) -> Owner | None:
    """Who wrote the line in ``path``, which is reopened so that network file systems ask their server. None: nobody."""
    try:
        return parse(path.read_bytes()[:LINE_BYTES])
    except FileNotFoundError:
        return None


def parse(line: bytes) -> Owner | None:
    """The owner that ``line`` names; None where it names none."""
    match line.decode(errors="replace").split():
        case [pid, "on", host, *rest] if pid.isascii() and pid.isdigit():
            found = dict(zip(rest[::2], rest[1::2], strict=False))
            beat = found.get("beat", "0")
            count = int(beat) if beat.isascii() and beat.isdigit() else 0
            return Owner(int(pid), host, found.get("boot", ""), count, found.get("left") == "yes")
    return None
