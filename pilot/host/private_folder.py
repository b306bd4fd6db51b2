"""Folders that only we can write to, held open.

Whoever may write to the folder above ours can rename it at any moment, and put another one or a link in its place. So a
folder is judged by its descriptor and then used as ``/proc/self/fd/N``: that remains the same folder, whatever its name
leads to by now.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

_names: dict[Path, Path] = {}
"""Names of the held folders, by their paths below /proc."""


class UnsafeFolder(PermissionError):
    """A folder or file that we must not use; ``strerror`` has the reason and a remedy, ``filename`` the name."""

    def __init__(self, why: str, path: Path) -> None:
        super().__init__(errno.EPERM, why, str(path))


def make(path: Path) -> None:
    """Create the folder and its missing parents with mode 0700, whatever the umask."""
    try:
        path.mkdir(mode=0o700)
    except FileNotFoundError:
        make(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError:  # if it exists, some file systems say that they are read-only
        if not path.is_dir():
            raise


@contextmanager
def held(path: Path, name: Path | None = None, *, follow: bool = True) -> Iterator[Path]:
    """Hold the folder at ``path`` open; yields a path that leads to it until then, even if it is renamed.

    Parameters
    ----------
    name : what it is called in messages; default: ``path``
    follow : whether ``path`` itself may be a link

    Raises
    ------
    UnsafeFolder : it is another user's, or others may write to it
    OSError : it cannot be opened. Errors of what is done there, too, have the names that users know
    """
    name = name or path
    descriptor = _opened(path, name, follow=follow)
    place = Path(f"/proc/self/fd/{descriptor}")
    try:
        _check(os.fstat(descriptor), name)
        _names[place] = name
        yield place
    except OSError as error:
        for attribute in ("filename", "filename2"):
            if isinstance(file := getattr(error, attribute), str | os.PathLike):
                setattr(error, attribute, str(shown(Path(file))))
        raise
    finally:
        _names.pop(place, None)
        os.close(descriptor)


def descriptor_of(place: Path) -> int:
    """Return the descriptor of a folder that is held as ``place``."""
    return int(place.name)


def shown(path: Path) -> Path:
    """Return ``path`` as the user knows it: by the name of the held folder, not below /proc."""
    held_in = next((folder for folder in (path, *path.parents) if folder in _names), None)
    return path if held_in is None else _names[held_in] / path.relative_to(held_in)


def private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file that only we may read, whatever the umask; not through a link. For ``open`` as its ``opener``."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def others_may_write(status: os.stat_result) -> bool:
    """Return whether the folder or file belongs to another user (except root), or others may write to it."""
    return status.st_uid not in (0, os.geteuid()) or bool(status.st_mode & _WRITABLE_BY_OTHERS)


def open_to_others(path: Path) -> Path | None:
    """The nearest folder, ``path`` or one above it, in which others may replace what is ours; None if there is none.

    In a folder with a sticky bit, others may replace only what is theirs.
    """
    for folder in (path, *path.parents):
        status = folder.stat()
        mine = status.st_uid in (0, os.geteuid())
        if others_may_write(status) and not (mine and status.st_mode & stat.S_ISVTX):
            return folder
    return None


def _opened(path: Path, name: Path, *, follow: bool) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    except OSError as error:
        if not follow and path.is_symlink():
            raise UnsafeFolder("it is a link, where pilot made a folder; have it removed", name) from None
        error.filename = str(name)
        raise


def _check(status: os.stat_result, name: Path) -> None:
    if status.st_uid != os.geteuid():
        owner = user_name(status.st_uid)
        raise UnsafeFolder(f"it belongs to user {owner}; have it removed, or choose another folder", name)
    if status.st_mode & _WRITABLE_BY_OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise UnsafeFolder(f"others may write to it (mode {mode:04o}); if all in it is yours, chmod go-w it", name)


def user_name(uid: int) -> str:
    """The user's name; the number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
