"""The run directory: one coordinator's files, its lock, and where they lie. See ``docs/processes.md``."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import time
from pathlib import Path

from pilot.core.errors import UserError
from pilot.core.ids import TrainerId

GLANCE_S = 0.5
"""Whoever asks for the owner holds the lock for a moment: an owner is who holds it longer than that."""

LINE_BYTES = 100
"""The owner's line has one length, so that it replaces an earlier one in one write: a reader never finds half of it."""


def default_path(site: str) -> Path:
    """``$PILOT_RUN_DIR``, or ``pilot/<site>`` in the user's state directory."""
    try:
        if given := os.environ.get("PILOT_RUN_DIR"):
            return Path(given).expanduser().absolute()
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return Path(base).absolute() / "pilot" / site
    except (OSError, RuntimeError) as error:  # the current folder is gone, or there is no such home
        raise UserError(f"no run directory can be named: {error}; give --run-dir, from another folder") from None


def check_readable(root: Path) -> None:
    """:class:`UserError` where ``root`` is there, but no directory that we may look into."""
    try:
        if not stat.S_ISDIR(root.stat().st_mode):
            raise UserError(f"run directory {root}: it is no directory")
        if not os.access(root, os.R_OK | os.X_OK):
            raise UserError(f"run directory {root}: you may not look into it")
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"run directory {root}: {reason}") from None


class RunDir:
    """Paths in a run directory. Making one touches nothing; :meth:`create` does."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.connection = self.root / "connection.json"
        self.lock = self.root / "coordinator.lock"
        self.journal = self.root / "journal.jsonl"
        self.log = self.root / "coordinator.log"
        self.ended = self.root / "ended.json"
        self.server_key = self.root / "server.key"
        self.site = self.root / "site.py"
        self.trainers = self.root / "trainers"
        self.pilots = self.root / "pilots"
        self.solver = self.root / "solver"

    def create(self) -> None:
        """Make it, 0700. :class:`UserError` where that is not possible, or it is another user's or open to others."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.root.stat()
            if status.st_uid != os.geteuid():
                raise UserError(f"run directory {self.root} belongs to user {status.st_uid}; choose another one")
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise UserError(f"run directory {self.root} is open to others; chmod 700 {self.root}")
            for folder in (self.trainers, self.pilots):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the run directory {self.root}: {error.strerror}") from None

    def trainer(self, trainer: TrainerId) -> Path:
        """Where the specification of ``trainer`` lies, and its logs and checkpoints unless the site says otherwise."""
        return self.trainers / trainer

    def set_aside(self) -> Path | None:
        """Move the journal and the trainers of an earlier pool to ``earlier/<time>``; None where there are none."""
        if not self.journal.exists():
            return None
        aside = self.root / "earlier" / time.strftime("%Y%m%d-%H%M%S")
        aside.mkdir(mode=0o700, parents=True)
        segments = self.journal.with_suffix("")
        for path in (self.journal, segments) if segments.exists() else (self.journal,):
            path.rename(aside / path.name)
        self.trainers.rename(aside / self.trainers.name)
        self.trainers.mkdir(mode=0o700)
        return aside


class Lock:
    """Who owns a run directory: held as long as the process lives, whatever ends it."""

    def __init__(self, rundir: RunDir) -> None:
        try:
            self._file = os.open(rundir.lock, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
            self._acquire(rundir)
        except OSError as error:
            raise UserError(f"cannot own the run directory {rundir.root}: {error.strerror}") from None

    def _acquire(self, rundir: RunDir) -> None:
        deadline = time.monotonic() + GLANCE_S
        while not _try_lock(self._file):
            if time.monotonic() > deadline:
                owner = os.pread(self._file, LINE_BYTES, 0).decode(errors="replace").strip() or "unknown"
                os.close(self._file)
                raise UserError(
                    f"run directory {rundir.root} is owned by another coordinator (process {owner}); "
                    "run pilot down first or choose another --run-dir"
                )
            time.sleep(0.01)
        line = f"{os.getpid()} on {socket.gethostname()}"
        os.pwrite(self._file, f"{line:<{LINE_BYTES - 1}.{LINE_BYTES - 1}}\n".encode(), 0)

    def release(self) -> None:
        """Give the run directory free."""
        os.close(self._file)


def owner(rundir: RunDir) -> int | None:
    """The process id of the coordinator that owns ``rundir`` on this host; None where none has said that it does."""
    held, words = _look(rundir)
    return int(words[0]) if held and words and words[0].isascii() and words[0].isdigit() else None


def is_abandoned(rundir: RunDir) -> bool:
    """Whether a coordinator of this host was killed here, or failed: its connection file leads nowhere."""
    held, words = _look(rundir)
    return not held and words[-1:] == [socket.gethostname()] and rundir.connection.exists()


def _look(rundir: RunDir) -> tuple[bool, list[str]]:
    """Whether somebody holds the lock, and the words of who did so last: ``PID on HOST``."""
    check_readable(rundir.root)
    try:
        descriptor = os.open(rundir.lock, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False, []
    except OSError as error:
        raise UserError(f"cannot read {rundir.lock}: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UserError(f"cannot read {rundir.lock}: it is not a regular file")
        held = not _try_lock(descriptor)
        return held, os.pread(descriptor, LINE_BYTES, 0).decode(errors="replace").split()
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
