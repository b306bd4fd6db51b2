"""Files that are either whole or not there."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path


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
