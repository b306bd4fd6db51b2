"""The run directory: a coordinator's files, its lock, and its last report. See ``docs/development/journal.md``."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from pilot.core.errors import NoRestartError, PilotError, UserError
from pilot.core.ids import TrainerId
from pilot.host import private_folder
from pilot.host.files import publish, replace_link
from pilot.rundir import heartbeat
from pilot.rundir.heartbeat import Owner

GLANCE_S = 0.5
"""Asking for the owner takes the lock for a moment; a process that holds it longer than this is the owner."""

UNQUOTED = re.compile(r"[\w@+=:,./~-]+")
"""Paths that mean the same in quotes and without. Parsl gives a script's path to a shell, and batch systems read the
output's path in a directive; neither is quoted. Bytes that are not UTF-8 could not be stored in our own files."""


def default_path(site: str) -> Path:
    """Return ``$PILOT_RUN_DIR``, or ``pilot/<site>`` in the user's state directory."""
    try:
        if given := os.environ.get("PILOT_RUN_DIR"):
            return Path(given).expanduser().absolute()
        return state_path() / site
    except (OSError, RuntimeError) as error:  # the current folder was removed, or the home directory does not exist
        raise UserError(f"cannot determine the run directory: {error}; give --run-dir, from another folder") from None


def learned_path(site: str) -> Path | None:
    """Return ``pilot/.learned/<site>`` in the user's state directory; None if there is no state directory."""
    try:
        return state_path() / ".learned" / site
    except (OSError, RuntimeError):
        return None


def state_path() -> Path:
    """Return ``pilot`` in the user's state directory; :class:`OSError` or :class:`RuntimeError` if there is none."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base).absolute() / "pilot"


def check_readable(root: Path) -> None:
    """:class:`UserError` if ``root`` exists but is not a directory that we can read."""
    try:
        if not stat.S_ISDIR(root.stat().st_mode):
            raise UserError(f"run directory {root}: not a directory")
        if not os.access(root, os.R_OK | os.X_OK):
            raise UserError(f"run directory {root}: permission denied{_of_whom(root)}")
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"run directory {root}: {reason}") from None


@contextmanager
def preparing(root: Path) -> Iterator[None]:
    """Prepare the run directory ``root`` within: an :class:`OSError` there becomes a :class:`UserError`."""
    try:
        yield
    except OSError as error:
        name = error.filename2 or error.filename
        where = f"{name}: " if name not in (None, str(root)) else ""
        raise UserError(
            f"cannot use the run directory {root}: {where}{error.strerror or error}; choose another one (--run-dir)"
        ) from None


def _of_whom(path: Path) -> str:
    """Return a clause that names the owner of ``path`` and a command that opens it; "" if it cannot be read."""
    try:
        return f"; it belongs to user {path.stat().st_uid}, who can chmod u+rX {shlex.quote(str(path))}"
    except OSError:
        return ""


class RunDir:
    """Paths in a run directory. Only :meth:`create` touches the disk."""

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
        self.sampler = self.root / "sampler"

    def create(self) -> None:
        """Create it with mode 0700; :class:`UserError` if that fails, if it is another user's or open to others, or if
        jobs could not be submitted from it.
        """
        if odd := UNQUOTED.sub("", str(self.root)):
            raise UserError(
                f"run directory {self.root}: jobs cannot be submitted from a path with {odd[0]!r}; choose another one"
            )
        with preparing(self.root):
            private_folder.make(self.root)
            status = self.root.stat()
            if status.st_uid != os.geteuid():
                raise UserError(f"run directory {self.root} belongs to user {status.st_uid}; choose another one")
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise UserError(f"run directory {self.root} is open to others; chmod 700 {shlex.quote(str(self.root))}")
            for folder in (self.trainers, self.pilots):
                folder.mkdir(mode=0o700, exist_ok=True)

    def trainer(self, trainer: TrainerId) -> Path:
        """Return the link to the folder of the newest trainer of this name: specification, logs and checkpoints."""
        return self.trainers / trainer

    def set_aside(self) -> Path | None:
        """Move the journal of an earlier pool to ``earlier/<time>``, which is returned; None if there is none.

        The trainers' folders stay, because agents that outlived the pool may still write there.
        """
        left = [path for path in (self.journal, self.journal.with_suffix("")) if path.exists()]
        if not left:
            return None
        aside = self.root / "earlier" / time.strftime("%Y%m%d-%H%M%S")
        private_folder.make(aside.parent)
        aside.mkdir(mode=0o700)
        for path in left:
            path.rename(aside / path.name)
        return aside


class Lock:
    """Ownership of a run directory, until the process ends for whatever reason. ``zero_s`` is that of the earlier owner
    (see :class:`~pilot.rundir.heartbeat.Owner`), if it ran on this host since the boot.
    """

    def __init__(self, rundir: RunDir) -> None:
        self._rundir = rundir
        self.zero_s: float | None = None
        self._missed = 0
        with preparing(rundir.root):
            self._file = os.open(rundir.lock, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
            try:
                self._acquire()
            except BaseException:
                os.close(self._file)
                raise

    def _acquire(self) -> None:
        deadline = time.monotonic() + GLANCE_S
        while not _try_lock(self._file, self._rundir.lock):
            if time.monotonic() > deadline:
                raise self._owned_by(heartbeat.read(self._rundir.lock))
            time.sleep(0.01)
        self._wait_for_other_hosts()
        before, self._owner = heartbeat.read(self._rundir.lock), heartbeat.ourselves()
        if before is not None and before.boot == self._owner.boot:
            self.zero_s = before.zero_s
        self._owner.write(self._file)

    def _wait_for_other_hosts(self) -> None:
        """Refuse to start if an owner on another host, where this lock may be unknown, still writes heartbeats."""
        found = heartbeat.read(self._rundir.lock)
        if found is None or found.here or found.left:
            return
        deadline = time.monotonic() + heartbeat.PATIENCE_S
        while time.monotonic() < deadline:
            time.sleep(heartbeat.BEAT_S / 10)
            if (now := heartbeat.read(self._rundir.lock)) != found:
                raise self._owned_by(now)

    def _owned_by(self, other: Owner | None) -> NoRestartError:
        name = f"{other.pid} on {other.host}" if other is not None else "unknown"
        return NoRestartError(
            f"the pool in {self._rundir.root} is already up (coordinator: process {name}); pilot scale changes "
            "its pilots, pilot status shows it; another pool needs another --run-dir"
        )

    def beat(self) -> None:
        """Write a heartbeat for other hosts; called every :data:`heartbeat.BEAT_S`. May have to wait for the
        disk.

        Raises
        ------
        PilotError : another host owns the run directory now, or it was removed; we must not touch it any more
        """
        self._refuse_removed()
        found = heartbeat.read(self._rundir.lock)
        if found is not None and not found.is_same(self._owner):
            raise PilotError(
                f"run directory {self._rundir.root} was taken over by process {found.pid} on {found.host}: flock does"
                " not work across hosts there; run one pilot up at a time, or choose another --run-dir"
            )
        self._write(beat=self._owner.beat + 1)

    def _refuse_removed(self) -> None:
        """Fail if the directory was removed: everything written there would be lost."""
        try:
            self._rundir.lock.stat()
        except FileNotFoundError:
            self._missed += 1
        else:
            self._missed = 0
        if self._missed > 1:  # a shared file system may not show a file for a moment
            raise PilotError(
                f"run directory {self._rundir.root} was removed or moved while its pool was up; if it was moved, pilot"
                " up --run-dir with its new path continues the pool"
            )

    def record_zero(self, pool_s: float) -> None:
        """Record that it is ``pool_s`` on the pool's clock, which continues even if the system's clock is set."""
        self._write(zero_s=heartbeat.since_boot_s() - pool_s)

    def leave(self) -> None:
        """Declare that we do nothing more in the run directory. It stays ours until :meth:`release` or the process's
        end."""
        self._write(left=True)

    def _write(self, **changes: Any) -> None:
        self._owner = msgspec.structs.replace(self._owner, **changes)
        self._owner.write(self._file)

    def release(self) -> None:
        """Give up the run directory."""
        os.close(self._file)


def owner(rundir: RunDir) -> int | None:
    """Return the process id of the coordinator that owns ``rundir`` on this host; None if there is none."""
    held, last = _lock_state(rundir)
    return last.pid if held and last is not None else None


def owner_status(rundir: RunDir) -> str:
    """Describe the process of a coordinator that does not answer, in a clause."""
    import psutil  # most commands get an answer, and start without it

    pid = owner(rundir)
    with suppress(psutil.Error):
        if pid is not None and psutil.Process(pid).status() == psutil.STATUS_STOPPED:
            return f"its process {pid} is stopped, and kill -CONT {pid} continues it"
    return "is it up?" if pid is None else f"its process {pid} is alive"


def is_abandoned(rundir: RunDir) -> bool:
    """Return whether a coordinator on this host was killed or crashed, leaving its connection file behind."""
    held, last = _lock_state(rundir)
    return not held and last is not None and last.here and rundir.connection.exists()


def _lock_state(rundir: RunDir) -> tuple[bool, Owner | None]:
    """Return whether the lock is held, and its last owner. Needs no right to write: it tries for a shared lock."""
    check_readable(rundir.root)
    try:
        descriptor = os.open(rundir.lock, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False, None
    except OSError as error:
        whose = _of_whom(rundir.lock) if isinstance(error, PermissionError) else ""
        raise UserError(f"cannot read {rundir.lock}: {error.strerror}{whose}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UserError(f"cannot read {rundir.lock}: it is not a regular file")
        held = not _try_lock(descriptor, rundir.lock, fcntl.LOCK_SH)
        return held, heartbeat.parse(os.pread(descriptor, heartbeat.LINE_BYTES, 0))
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, path: Path, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # NFS without a lock server, a file system without locks
        raise UserError(
            f"cannot lock {path}: {error.strerror}; choose a run directory on another file system (--run-dir)"
        ) from None
    return True


class Ended(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A coordinator's last report, written before it gives up its run directory; empty after a clean shutdown."""

    failure: str = ""  #: the error that ended it
    jobs_left: tuple[str, ...] = ()  #: ids of our jobs that still exist
    jobs_unknown: str = ""  #: why the scheduler could not say whether jobs are left
    nodes_left: tuple[str, ...] = ()  #: nodes that had not left when a second signal ended the drain
    unsaved: tuple[str, ...] = ()  #: trainers whose state could not be written when they paused

    def problems(self) -> list[str]:
        """Describe what went wrong or is left, a clause each."""
        texts = {
            "it failed": self.failure,
            "these jobs still exist; cancel them by hand": ", ".join(self.jobs_left),
            "cannot tell whether jobs of this pool are left": self.jobs_unknown,
            "it was stopped before these nodes had left": ", ".join(self.nodes_left),
            "the state of these trainers could not be written": ", ".join(self.unsaved),
        }
        return [f"{problem}: {detail}" for problem, detail in texts.items() if detail]


def write_end(path: Path, ended: Ended) -> None:
    """Publish the report with mode 0600."""
    publish(path, msgspec.json.encode(ended) + b"\n")


def read_end(path: Path) -> Ended | None:
    """Read the report; None if there is none: the coordinator still runs, or was killed."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Ended)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"cannot read how the coordinator ended from {path}: {error}") from None


def remember(root: Path) -> None:
    """Make a link to a pool outside the state directory in its ``pilot/.pools/``, so that ``pilot pools`` lists it. A
    link is removed if its pool no longer exists. If the directory is not writable, the pool is not listed.
    """
    with suppress(OSError, RuntimeError):
        if root.parent == state_path():
            return
        folder = _links()
        private_folder.make(folder)
        replace_link(folder / hashlib.sha256(str(root).encode()).hexdigest()[:16], str(root))


def known_pools() -> list[Path]:
    """Return the run directories that have or had a pool, in alphabetical order."""
    try:
        found = [path for path in state_path().glob("*") if path.is_dir()]
        found += [_target(link) for link in _links().glob("*") if link.is_symlink()]
    except (OSError, RuntimeError):
        return []
    return sorted({path for path in found if _has_pool(path)})


def _target(link: Path) -> Path:
    """Return the target of a link; the link is removed if its target does not exist."""
    target = link.readlink()
    if not _has_pool(target):
        with suppress(OSError):
            link.unlink()
    return target


def _has_pool(root: Path) -> bool:
    with suppress(OSError):
        return RunDir(root).journal.exists()
    return False


def _links() -> Path:
    return state_path() / ".pools"
