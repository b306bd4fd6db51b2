"""Files that the user named for our output: never written through a link that another user may have planted."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pilot.core.errors import UserError
from pilot.host.files import published, sync_directory, umask
from pilot.host.private_folder import UnsafeFolder, held, others_may_write

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40
"""As many as the kernel follows."""


def write_output(path: Path, data: bytes) -> None:
    """Publish ``data`` as ``path``; see :func:`output`."""
    with output(path) as file:
        file.write(data)


@contextmanager
def output(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing, published as ``path`` when the block ends, with the permissions that the user's umask
    allows; a pipe or device that has this name is written to instead.

    Raises
    ------
    UserError
        It cannot be written, or a link leads to it that others may have planted.
    """
    with (
        _explained(path),
        reached(path) as place,
        _special(path) if _is_special(path) else published(place, 0o666 & ~umask()) as file,
    ):
        yield file


@contextmanager
def output_folder(path: Path) -> Iterator[Path]:
    """Make a folder, published as ``path`` when the block ends. Raises like :func:`output`, and if there is anything at
    ``path``: a folder cannot be replaced in one step."""
    with _explained(path), reached(path) as place:
        if place.exists():
            raise FileExistsError(errno.EEXIST, "it exists already; remove it, or choose another name")
        prefix = f".{place.name}."
        with tempfile.TemporaryDirectory(prefix=prefix, dir=place.parent, ignore_cleanup_errors=True) as temporary:
            with held(Path(temporary), path, follow=False) as folder:
                yield folder
                folder.chmod(0o777 & ~umask())
            Path(temporary).rename(place)
        sync_directory(place.parent)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None


@contextmanager
def reached(path: Path) -> Iterator[Path]:
    """Hold the folder in which a file is to be written as ``path``; yields its place there, which is no link.

    Links are followed on the way, but none in a folder to which others may write.

    Raises
    ------
    UnsafeFolder : there is such a link
    OSError : there is no such folder
    """
    names, links, here = _backwards(path.absolute()), 0, os.open("/", _FOLDER)
    try:
        while names:
            name = names.pop()
            if (target := _link(here, name)) is not None:
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                _refuse_planted(here, name)
                names += _backwards(target)
                following = os.open("/" if target.is_absolute() else ".", _FOLDER, dir_fd=here)
            elif names:
                following = os.open(name, _FOLDER, dir_fd=here)
            else:
                yield Path(f"/proc/self/fd/{here}", name)
                return
            os.close(here)
            here = following
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    finally:
        os.close(here)


def _backwards(path: Path) -> list[str]:
    return [name for name in reversed(path.parts) if name != "/"]


def _link(folder: int, name: str) -> Path | None:
    """Return the target of a link; None if it is not a link."""
    try:
        return Path(os.readlink(name, dir_fd=folder))
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _refuse_planted(folder: int, link: str) -> None:
    if others_may_write(os.fstat(folder)):
        where = Path(f"/proc/self/fd/{folder}").readlink()
        raise UnsafeFolder(
            f"{link} is a link in {where}, where others may write; give the path to which it leads", where
        )


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


@contextmanager
def _special(path: Path) -> Iterator[BinaryIO]:
    """Open a pipe or device; not one of another user, who may keep us waiting for ever."""
    if path.stat().st_uid not in (0, os.geteuid()):
        raise UnsafeFolder("it is a pipe or device of another user", path)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC), "wb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UnsafeFolder("it was just replaced by a file", path)
        yield file
