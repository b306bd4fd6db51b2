"""Where the output of users' Python goes that runs within a command: site files, objectives."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress

STDOUT, STDERR = 1, 2


@contextmanager
def prints_to_stderr() -> Iterator[None]:
    """What is printed meanwhile, also by child processes, goes to stderr: a program may be reading our stdout."""
    with ExitStack() as undo:
        undo.enter_context(redirect_stdout(sys.stderr))
        with suppress(OSError):  # one of them is closed
            kept = os.dup(STDOUT)
            undo.callback(os.close, kept)
            os.dup2(STDERR, STDOUT)
            undo.callback(os.dup2, kept, STDOUT)
        yield
