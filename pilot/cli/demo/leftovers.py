"""What a pool may have left on this host: processes, shared-memory segments, temporary directories."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

SETTLE_S = 10.0
"""The last guardian ends some moments after its agent; what is still there after this stays."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What was there at one time, by name."""

    names: frozenset[str]

    @classmethod
    def look(cls) -> Leftovers:
        """Everything on this host that is ours or could be."""
        return cls(frozenset([*_processes(), *_segments(), *_folders()]))

    def new(self) -> list[str]:
        """What is there now and was not then, after a while for the last ones to go."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            left = sorted(Leftovers.look().names - self.names)
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.1)


def _processes() -> list[str]:
    """Processes of this user that carry an agent's mark or run a coordinator."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.uids().real != os.getuid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            ours = "PILOT_AGENT_MARK" in process.environ() or "pilot.live.main" in process.cmdline()
            if ours:
                found.append(f"process {process.pid}: {' '.join(process.cmdline())[:80]}")
    return found


def _segments() -> list[str]:
    return [str(path) for path in Path("/dev/shm").glob("*") if _mine(path)]


def _folders() -> list[str]:
    return [str(path) for path in Path(os.environ.get("TMPDIR", "/tmp")).glob("pilot-*") if _mine(path)]


def _mine(path: Path) -> bool:
    with suppress(OSError):
        return path.stat().st_uid == os.getuid()
    return False
