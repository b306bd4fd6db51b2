"""Check the file systems of the run directory and of the site's checkpoint directory."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from pilot.checkpoint import probe
from pilot.core.errors import CheckpointError, SubmitError
from pilot.doctor.finding import Finding, fail, ok, ok_if, warn
from pilot.host import private_folder
from pilot.host.commands import run_command
from pilot.site.site import Site

SPACE_FEW_BYTES, SPACE_TOO_FEW_BYTES = 5_000_000_000, 200_000_000
FILES_FEW = 1000
ALLOCATED_BYTES = 64 * 1024 * 1024
SLOW_WRITE_S = 2.0
SKEW_S = 1.0
COMMAND_LIMIT_S = 20.0
OTHERS = {
    "run directory": "choose one in a folder to which only you may write: whoever replaces it answers your commands",
    "checkpoint directory": "pilot uses only folders that it made there and that are yours alone, so others can stop"
    " your trainers but not change them; a folder of your own, or its sticky bit (chmod +t), prevents that, too",
}
"""Remedies if others may replace the folder's content."""
_LOCAL_LOCKS = frozenset({"localflock", "nolock", "local_lock=flock", "local_lock=all"})


def storage(site: Site, run_dir: Path) -> Iterator[Finding]:
    """Check locks, checkpoints, free space and quota of the run directory and the checkpoint directory."""
    places = {run_dir: "run directory"}
    if site.checkpoint_dir is not None:
        places.setdefault(Path(site.checkpoint_dir), "checkpoint directory")
        yield from _pools("checkpoint directory", run_dir)
    for place, check in places.items():
        folder = existing(place)
        if (blocked := _blocked_by(place, folder)) is not None:
            yield fail(check, f"{blocked} is not a directory", "choose another directory (--run-dir, checkpoint_dir)")
            continue
        if not os.access(folder, os.W_OK | os.X_OK):
            yield fail(check, f"{folder} is not writable", "choose another directory (--run-dir, checkpoint_dir)")
            continue
        if (open_to := private_folder.open_to_others(folder.resolve())) is not None:
            yield warn(check, f"others may rename and replace folders in {open_to}", OTHERS[check])
        yield from _locks(check, folder)
        yield from _checkpoints(check, folder)
        yield from _space(check, folder)


def _pools(check: str, run_dir: Path) -> Iterator[Finding]:
    """Check that the folders in which this run directory's pools have their checkpoints and logs are still ours."""
    links = [link for link in run_dir.glob("trainers/*/checkpoints") if link.is_symlink()]
    for pool in sorted({link.readlink().parents[1] for link in links}):
        try:
            with suppress(FileNotFoundError), private_folder.held(pool, follow=False):
                pass
        except OSError as error:
            yield fail(check, f"{error.filename}: {error.strerror}", "its trainers are refused until then")


def existing(path: Path) -> Path:
    """``path``, or its nearest parent that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if _is_directory(folder))


def _blocked_by(path: Path, folder: Path) -> Path | None:
    """What has the name of the next folder to create in ``folder`` on the way to ``path``; None if nothing has."""
    wanted = next((each for each in (path, *path.absolute().parents) if each.parent == folder), folder)
    return wanted if wanted != folder and os.path.lexists(wanted) else None


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # we may not read a parent
        return False


def _locks(check: str, folder: Path) -> Iterator[Finding]:
    """Check ``flock``, which gives a run directory a single owner, and HDF5's, which only other readers need."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        remedy = "choose a run directory on another file system: two coordinators could own this one"
        yield fail(check, f"flock in {folder}: {error.strerror}", remedy)
    if option := _local_lock(folder):
        remedy = "use a run directory from one login node at a time; a second pilot up is refused only after 15 s"
        yield warn(check, f"locks in {folder} are not seen by other hosts (mounted with {option})", remedy)
    if problem := probe.locking_problem(folder):
        remedy = "pilot does not need it; set HDF5_USE_FILE_LOCKING=FALSE for your own readers"
        yield warn(check, f"HDF5 cannot lock files in {folder}: {problem}", remedy)
    else:
        yield ok(check, f"HDF5 can lock files in {folder}")


def _local_lock(folder: Path) -> str:
    """The mount option that hides other hosts' locks, or "". (mount.lustre(8), nfs(5))"""
    mounts = [m for m in psutil.disk_partitions(all=True) if folder.absolute().is_relative_to(m.mountpoint)]
    options = max(mounts, key=lambda m: len(m.mountpoint)).opts.split(",") if mounts else []
    return next((option for option in options if option in _LOCAL_LOCKS), "")


def _checkpoints(check: str, folder: Path) -> Iterator[Finding]:
    try:
        seconds = probe.write_seconds(folder)
    except CheckpointError as error:
        yield fail(check, str(error), "choose another directory (--run-dir, checkpoint_dir)")
        return
    seen = f"a checkpoint of 1 MB was published in {folder} in {seconds:.3f} s and verified"
    remedy = "slow: put checkpoints on a parallel file system (checkpoint_dir)"
    yield ok_if(seconds <= SLOW_WRITE_S, check, seen, remedy, warn)


def _space(check: str, folder: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    seen = f"{free / 1e9:.1f} GB free in {folder}"
    remedy = "free some, or choose another directory: every checkpoint is as large as the model and optimizer state"
    yield ok_if(free >= SPACE_FEW_BYTES, check, seen, remedy, fail if free < SPACE_TOO_FEW_BYTES else warn)
    counts = os.statvfs(folder)
    if counts.f_files and counts.f_favail < FILES_FEW:
        yield warn(check, f"room for {counts.f_favail} more files in {folder}", "remove some files")
    yield from _quota(check, folder)


def _quota(check: str, folder: Path) -> Iterator[Finding]:
    """Check the quota by allocating some space, on any file system, and by ``quota`` if it is installed."""
    remedy = "free some space, or ask for more quota"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, ALLOCATED_BYTES)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            yield fail(check, f"cannot allocate 64 MB in {folder}: {error.strerror}", remedy)
    if shutil.which("quota") is not None:
        try:
            output = run_command(["quota", "-q"], COMMAND_LIMIT_S).strip()
        except SubmitError as error:
            output = str(error)
        if output:
            yield warn(check, f"quota reports: {' '.join(output.split())}", remedy)


def clock(_site: Site, run_dir: Path) -> Iterator[Finding]:
    """Compare this host's clock with the time stamps of the run directory's file system (often a server's clock)."""
    with tempfile.NamedTemporaryFile(dir=existing(run_dir)) as file:
        before_s = time.time()
        file.write(b"1")
        file.flush()
        stamped_s = os.fstat(file.fileno()).st_mtime
        skew_s = max(before_s - stamped_s, stamped_s - time.time(), 0.0)
    seen = f"this host and the file system of {existing(run_dir)} differ by {skew_s:.2f} s"
    remedy = "tell the admins (NTP): wall times and logs of different nodes will not line up"
    yield ok_if(skew_s <= SKEW_S, "clock", seen, remedy, warn)
