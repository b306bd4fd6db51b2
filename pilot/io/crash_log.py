"""Where an internal error's traceback is kept: not on the user's screen."""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path

from pilot.core.errors import one_line
from pilot.core.version import __version__
from pilot.io import own_folder
from pilot.io.files import publish


def saved() -> str:
    """Where the current exception's traceback was saved, in words; its last line if it cannot be saved."""
    try:
        return f"traceback in {_save()}"
    except (OSError, RuntimeError):  # disk full, or no home directory
        return one_line(traceback.format_exc().splitlines()[-1])


def _save() -> Path:
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "pilot"
    own_folder.make(base)
    path = base / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    text = f"pilot {__version__}, arguments: {sys.argv[1:]}\n{traceback.format_exc()}"
    publish(path, text.encode(errors="backslashreplace"))
    return path
