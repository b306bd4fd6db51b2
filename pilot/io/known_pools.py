"""Where this user's pools are: in the user's state directory, or wherever ``pilot up --run-dir`` put them.

The latter are remembered as links in ``pilot/.pools/`` in the state directory. A link is removed if its pool no longer
exists.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from pilot.io import own_folder
from pilot.io.files import replace_link
from pilot.io.rundir import RunDir, state_path


def remember(root: Path) -> None:
    """Remember that a pool is in ``root``. If the state directory is not writable, ``pilot pools`` will not list it."""
    with suppress(OSError, RuntimeError):
        if root.parent == state_path():
            return
        folder = _links()
        own_folder.make(folder)
        replace_link(folder / hashlib.sha256(str(root).encode()).hexdigest()[:16], str(root))


def known_pools() -> list[Path]:
    """The run directories that have or had a pool, in alphabetical order."""
    try:
        found = [path for path in state_path().glob("*") if path.is_dir()]
        found += [_target(link) for link in _links().glob("*") if link.is_symlink()]
    except (OSError, RuntimeError):
        return []
    return sorted({path for path in found if _has_pool(path)})


def _target(link: Path) -> Path:
    """The target of a link; the link is removed if its target does not exist."""
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
