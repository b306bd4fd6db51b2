"""Ownership of a trainer's folder: the folder contains the trainer's uid, and each use of its files checks that.

An agent may outlive its pool (if a drain was cut short), and a name may be used again. So a new trainer of the same
name gets a folder of its own, and nobody writes into a folder that is another trainer's or has been removed.

The folder may be on a disk where others can rename it and put theirs in its place (``checkpoint_dir`` of a site). So
its parts are only used while they are held (:mod:`pilot.host.private_folder`).
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pilot.core.ids import TrainerId, TrainerUid
from pilot.host import private_folder
from pilot.host.files import open_regular, publish
from pilot.host.private_folder import UnsafeFolder

_MARK = ".trainer_uid"
_DIGITS = 8


def name(trainer: TrainerId, uid: TrainerUid) -> str:
    """Return ``<trainer>-<first digits of its uid>``; only the trainer's name if it has no uid."""
    return f"{trainer}-{uid[:_DIGITS]}" if uid else trainer


def mark(folder: Path, uid: TrainerUid) -> None:
    """Record that trainer ``uid`` owns ``folder``."""
    publish(folder / _MARK, f"{uid}\n".encode())


def owner_of(folder: Path) -> str:
    """Return the uid of the trainer that owns ``folder``; "" if nobody does, or if it does not exist."""
    try:
        return (folder / _MARK).read_text(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


@contextmanager
def home(folder: Path, uid: str) -> Iterator[Path]:
    """Hold ``folder`` if it is that of trainer ``uid``; raises like :func:`held`."""
    with ExitStack() as stack:
        try:
            place = stack.enter_context(private_folder.held(folder))
        except FileNotFoundError:
            raise OSError(errno.ESTALE, "there is no such folder (any more)", str(folder)) from None
        _check_owner(place, uid)
        yield place


@contextmanager
def held(part: Path, uid: str, *, make: bool = False) -> Iterator[Path]:
    """Hold ``part`` (such as ``checkpoints``) of the folder of trainer ``uid``; yields a path that leads to it until
    then. It may be a link that we made in that folder.

    Parameters
    ----------
    uid : "" if ``part`` is in no trainer's folder, but a folder of ours
    make : create it if it is missing

    Raises
    ------
    UnsafeFolder : it or its folder is another trainer's, another user's, or others may write to it
    FileNotFoundError : it does not exist, but its folder does
    OSError : it cannot be opened
    """
    with ExitStack() as stack:
        if uid:
            folder = stack.enter_context(home(part.parent, uid))
            if (link := folder / part.name).is_symlink():
                folder = stack.enter_context(home(link.readlink().parent, uid))
            inside = folder / part.name
        else:
            _check_owner(part.parent, uid)
            inside = part
        if make:
            private_folder.make(inside)
        yield stack.enter_context(private_folder.held(inside, part, follow=not uid))


@contextmanager
def held_here(part: Path) -> Iterator[Path]:
    """Hold ``part`` of any trainer's folder in a run directory; raises like :func:`held`."""
    with held(part, owner_of(part.parent)) as place:
        yield place


def start_of(folder: Path) -> Path:
    """Return the path of the checkpoint that the trainer of ``folder`` starts from, if it was submitted with one."""
    return folder / "start" / "index.h5"


def start_from(folder: Path, files: Sequence[str], trainers: Path | None = None) -> None:
    """Let the trainer of ``folder`` start from a checkpoint: the file to open and its parts. Without ``files``, do
    nothing. Files in ``trainers``, the folder of all trainers, must be those of the trainer that has them.

    Our own files are hard-linked, which is safe because checkpoints never change; others, and those for which that is
    not possible, are copied. It does not matter if their owner renames or removes them later.
    """
    for number, file in enumerate(files):
        start = start_of(folder)
        start.parent.mkdir(mode=0o700, exist_ok=True)
        target = start if number == 0 else start.with_name(Path(file).name)
        with _source(Path(file), trainers) as source, open_regular(source) as opened:
            _take(opened, target)


@contextmanager
def _source(file: Path, trainers: Path | None) -> Iterator[Path]:
    """Yield the path of ``file``; if it is in ``trainers``, its folder is held, and must be its trainer's."""
    of_all = file.parents[2] if len(file.parents) > 2 else None
    if trainers is None or of_all is None or not of_all.exists() or not of_all.samefile(trainers):
        yield file
        return
    with held_here(file.parent) as folder:
        yield folder / file.name


def _take(source: BinaryIO, target: Path) -> None:
    descriptor = source.fileno()
    if os.fstat(descriptor).st_uid == os.geteuid():
        with suppress(OSError):  # src_dir_fd is not used, but has the kernel link the open file, not the link to it
            os.link(f"/proc/self/fd/{descriptor}", target, src_dir_fd=descriptor)
            return
    with target.open("xb") as copy:
        shutil.copyfileobj(source, copy)


def _check_owner(folder: Path, uid: str) -> None:
    """:class:`UnsafeFolder` unless ``folder`` is that of trainer ``uid`` ("": of no trainer)."""
    owner = owner_of(folder)
    if owner and owner != uid:
        raise UnsafeFolder(f"it is the folder of another trainer ({owner})", private_folder.shown(folder))
    if owner != uid:  # it was removed, or the file system is not mounted now
        raise OSError(errno.ESTALE, "it is the folder of no trainer (any more)", str(private_folder.shown(folder)))
