"""An agent's private directory on its node: sockets, and a list of segments to remove after the agent's end.

The directory is locked (flock) as long as its agent or its guardian is running, so an unlocked one is a leftover, even
if pids have been reused. Its name is also the *mark* in the environment of every process of the agent.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pilot.core.errors import UserError
from pilot.host import proc
from pilot.protocol import connection

MARK = "PILOT_AGENT_MARK"

_OURS = re.compile(r"pilot-\d+-[a-z2-7]{16}")

_LONGEST_BASE = 40
"""AF_UNIX paths are limited to 107 bytes; below this there is space for this directory and a multiprocessing socket in
it."""


@dataclass(slots=True)
class Workdir:
    """The directory of a running agent. ``lock`` is the descriptor that the guardian inherits; the name ends in
    ``tokens.life_name(secret)``, by which the agent proves that the name is its own.
    """

    path: Path
    lock: int
    secret: str

    @property
    def mark(self) -> str:
        """The entry in the environment of every process of this agent."""
        return f"{MARK}={self.path.name}"

    def socket(self, number: int) -> Path:
        """The socket on which the training process ``number`` listens for its rank processes."""
        return self.path / f"w{number}"

    def store(self, number: int) -> Path:
        """Where the processes of a worker, the first of which is ``number``, meet to form a process group."""
        return self.path / f"s{number}"

    @property
    def temporary(self) -> Path:
        """``TMPDIR`` of the workers: removed with the agent."""
        return self.path / "t"

    def record_segments(self, names: Iterable[str]) -> None:
        """Record the names in /dev/shm that this agent's rank processes may use, replacing the earlier ones.

        They are recorded before they exist, so that nothing is left behind if the agent is killed.
        """
        file = _segments_file(self.path)
        unfinished = file.with_suffix(".new")
        unfinished.write_text("".join(f"{name}\n" for name in names))
        unfinished.replace(file)


def create(base: Path | None = None) -> Workdir:
    """Create the directory with mode 0700 in ``base`` (default: the system's temporary directory). Raises UserError if
    it cannot be created or locked there."""
    parent = base if base is not None else _base()
    try:
        with ExitStack() as undo:
            unfinished = Path(tempfile.mkdtemp(prefix=".pilot-", dir=parent))
            undo.callback(shutil.rmtree, unfinished, ignore_errors=True)
            lock = os.open(unfinished / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            undo.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
            undo.pop_all()
    except OSError as error:
        raise _unusable(f"{parent}: {error.strerror}") from None
    secret = connection.new_token()
    workdir = Workdir(unfinished.rename(parent / f"{_prefix()}{connection.life_name(secret)}"), lock, secret)
    workdir.temporary.mkdir()
    return workdir


def erase(path: Path) -> list[int]:
    """Kill all processes with the mark of a workdir whose agent has ended, and remove its segments and the workdir
    itself; returns the pids that could not be killed.
    """
    left = proc.kill_marked(f"{MARK}={path.name}")
    if (names := _segments_file(path)).is_file():
        proc.unlink_segments(name for name in names.read_text().splitlines() if "/" not in name)
    shutil.rmtree(path, ignore_errors=True)
    return left


def sweep(base: Path | None = None) -> list[str]:
    """Erase the workdirs of this user's agents that died together with their guardians; returns their names."""
    return [path.name for path in left_over(base) if erase(path) == []]


def left_over(base: Path | None = None) -> list[Path]:
    """The workdirs of this user's agents that died together with their guardians."""
    parent = base if base is not None else _base()
    return [path for path in sorted(parent.glob(f"{_prefix()}*")) if _is_left_over(path)]


def _base() -> Path:
    try:
        base = Path(tempfile.gettempdir())
    except OSError as error:  # it tries to write, and the disk may be full
        raise _unusable(str(error.strerror)) from None
    return base if len(os.fsencode(base)) <= _LONGEST_BASE else Path("/tmp")


def _unusable(why: str) -> UserError:
    return UserError(f"no folder for temporary files: {why}; set scratch_dir in the site file")


def _prefix() -> str:
    return f"pilot-{os.getuid()}-"


def _segments_file(workdir: Path) -> Path:
    return workdir / "segments"


def _is_left_over(path: Path) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    return private and _OURS.fullmatch(path.name) is not None and not _is_locked(path / "lock")


def _is_locked(lock: Path) -> bool:
    """Whether it is locked. A workdir is created with its lock; one without it is left from a guardian killed while
    erasing."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # somebody has it, or a file system without locks cannot tell
        return True
    else:
        return False
    finally:
        os.close(descriptor)
