"""A coordinator that records the file operations of its event loop's thread while it serves.

``python -m tests.integration.watched_coordinator`` takes the arguments of the daemon. Each is a line in the file that
``PILOT_WATCHED`` names: the event, its subject, and its origin in our code.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from pilot.service import daemon

AUDITED = {
    "open", "os.chmod", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir",
    "os.symlink", "os.truncate", "os.utime", "shutil.rmtree", "shutil.copyfile", "tempfile.mkstemp", "tempfile.mkdtemp",
    "subprocess.Popen",
}  # fmt: skip
"""Events of Python's audit hooks that open, create, find, remove or execute a file."""

UNAUDITED = ("fsync", "fdatasync", "stat", "lstat", "access", "statvfs")
"""Calls of ``os`` that may also wait for a disk, and raise no audit event."""

NO_DISK = ("/proc/", "/sys/", "/dev/")
"""The kernel answers these at once."""

ALLOWED = {
    "pilot/service/planning/child_process.py:start": "asyncio starts processes on the loop; Python is in memory",
}
"""``file:function`` of our innermost frame → why it is allowed."""


class Watch:
    """Watches everything that the serving thread does, for as long as it ``serves``."""

    def __init__(self, path: str) -> None:
        self._out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._serving: int | None = None

    def begin(self) -> None:
        """This thread serves from now on."""
        self._serving = threading.get_ident()
        sys.addaudithook(self._heard)
        for name in UNAUDITED:
            setattr(os, name, self._wrapped(name, getattr(os, name)))

    def end(self) -> None:
        """It no longer serves."""
        self._serving = None

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self._note(f"os.{name}", arguments)
            return function(*arguments, **named)

        return call

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in AUDITED:
            self._note(event, arguments)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        about = arguments[0] if arguments else ""
        is_open = event == "open" and isinstance(about, int)  # wraps a descriptor in a file object
        if threading.get_ident() != self._serving or is_open or str(about).startswith(NO_DISK):
            return
        self._serving = None  # our own look-ups here do not count
        ours = [f for f in traceback.extract_stack() if "/pilot/" in f.filename and "/tests/" not in f.filename]
        where = [f"{'pilot/' + f.filename.rpartition('/pilot/')[2]}:{f.name}" for f in ours]
        if not where or where[-1] not in ALLOWED:
            told = f"{event} {str(about)[:100]} from {' > '.join(where[-3:])}\n"
            os.write(self._out, told.encode())
        self._serving = threading.get_ident()


def main() -> int:
    """The daemon, watched while it serves, until nothing is left to be served."""
    watch = Watch(os.environ["PILOT_WATCHED"])
    run = daemon.Live.run

    async def watched(live: daemon.Live) -> Any:
        watch.begin()
        try:
            return await run(live)
        finally:
            watch.end()

    daemon.Live.run = watched
    return daemon.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
