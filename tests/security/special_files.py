"""Files that are not regular, and other contents of a path."""

from __future__ import annotations

import os
from pathlib import Path

SPECIAL = ("fifo", "folder", "loop", "device")


def put(path: Path, what: str | bytes) -> Path:
    """Replace ``path`` by a special file, by an ``empty`` or ``sparse`` one, or by one with this content."""
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    match what:
        case bytes():
            path.write_bytes(what)
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "empty":
            path.touch()
        case "sparse":
            path.touch()
            os.truncate(path, 1 << 40)
        case _:
            raise ValueError(what)
    return path
