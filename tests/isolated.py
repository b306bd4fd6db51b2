"""``python -m tests.isolated COMMAND ...``: run tests that search the whole machine for leftovers, beside other tests.

As root, the command gets its own process ids, temporary files and shared memory. Otherwise it waits until no other such
command runs.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_PRIVATE = "mount -t tmpfs -o mode=1777 tests /tmp && mount -t tmpfs -o mode=1777 tests /dev/shm"


def main(command: Sequence[str]) -> None:
    """Become ``command``."""
    if _can_be_private():
        os.execvp(_NAMESPACES[0], [*_NAMESPACES, "sh", "-c", f'{_PRIVATE} && exec "$@"', "sh", *command])
    lock = os.open(Path(tempfile.gettempdir(), f"pilot-tests-{os.getuid()}"), os.O_CREAT | os.O_RDWR, 0o600)
    os.set_inheritable(lock, True)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.execvp(command[0], list(command))


def _can_be_private() -> bool:
    """Whether this user may mount, and nothing that the command needs is in /tmp."""
    if os.getuid() != 0 or Path.cwd().is_relative_to("/tmp") or Path(sys.prefix).is_relative_to("/tmp"):
        return False
    tried = subprocess.run([*_NAMESPACES, "sh", "-c", _PRIVATE], capture_output=True, check=False)
    return tried.returncode == 0


if __name__ == "__main__":
    main(sys.argv[1:])
