"""Files that are either whole or not there."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

from pilot.core.errors import UserError

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What a full disk, a quota or a limit answers."""

SICK = NO_ROOM | {errno.EIO, errno.ESTALE, errno.EROFS}
"""What a file system answers that is full or fails, for a while perhaps: nobody's mistake."""


def publish(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write ``data`` to ``path`` so that a reader sees the old file or the new one, never a part.

    The temporary file lies beside ``path`` (a rename does not cross file systems) and is removed on an error.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_output(path: Path, data: bytes) -> None:
    """Publish a file that the user named, with the permissions that the user's umask allows; a pipe or device that has
    this name is written to instead.

    Raises
    ------
    UserError
        It cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            publish(path.resolve(), data, 0o666 & ~umask())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None


def umask() -> int:
    """This process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def replace_link(path: Path, target: str) -> None:
    """Make ``path`` a symbolic link to ``target``, in place of an earlier one or of nothing; at no time is it gone."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.link")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    try:
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def sync_directory(directory: Path) -> None:
    """Make renames, creations and removals in ``directory`` outlast a power failure, where its file system can.

    Some network and user-space file systems cannot sync a directory and say so (EINVAL, ENOTSUP). There the file's own
    bytes are safe, when its name is depends on the file system, and nothing more can be done: that is no error.
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
    """Open a file that a user or somebody else named, for reading; it never waits, as a FIFO would make us.

    Raises
    ------
    OSError
        It cannot be opened, or is no regular file; ``strerror`` says so to a user.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind == stat.S_IFREG:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    number = errno.EISDIR if kind == stat.S_IFDIR else errno.EINVAL
    raise OSError(number, os.strerror(number) if number == errno.EISDIR else "not a regular file", str(path))


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file; raises as :func:`open_regular`, and where it is larger than ``most_bytes``."""
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes", str(path))
    return content
