"""Files that are either complete or absent."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a full disk, a quota, or a limit."""

SICK = NO_ROOM | {errno.EIO, errno.ESTALE, errno.EROFS}
"""Errors of a file system that is full or failing, perhaps only for a while; not a mistake of ours or the user's."""


def publish(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write ``data`` to ``path`` so that a reader sees the old file or the new one, never a part of it."""
    with published(path, mode) as file:
        file.write(data)


@contextmanager
def published(path: Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Open a file for writing, which becomes ``path`` when the block ends.

    The temporary file is in the same directory, because a rename cannot cross file systems; it is removed on an error.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            yield file
            file.flush()
            os.fsync(descriptor)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def tail(file: BinaryIO, most_bytes: int, begin: int = 0) -> str:
    """Return the end of ``file`` as text: at most ``most_bytes`` bytes, and none before ``begin``."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(begin, size - most_bytes))
    return file.read(most_bytes).decode(errors="replace")


def umask() -> int:
    """Return this process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def replace_link(path: Path, target: str) -> None:
    """Make ``path`` a symbolic link to ``target``. An existing link is replaced atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.link")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    try:
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def sync_directory(directory: Path) -> None:
    """Make renames, creations and removals in ``directory`` survive a power failure, if the file system can.

    Some network and user-space file systems cannot sync a directory and say so (EINVAL, ENOTSUP). That is not an error:
    the file's content is safe, and there is nothing more that we could do about its name.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; anything but a regular file is refused (a FIFO would block).

    Raises
    ------
    OSError
        It cannot be opened, or it is not a regular file; ``strerror`` is a message for the user.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind == stat.S_IFREG:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    number = errno.EISDIR if kind == stat.S_IFDIR else errno.EINVAL
    raise OSError(number, os.strerror(number) if number == errno.EISDIR else "not a regular file", str(path))


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file. Raises like :func:`open_regular`, and if it is larger than ``most_bytes``."""
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes", str(path))
    return content
