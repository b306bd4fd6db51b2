"""When one of our errors ends a user's script: print one line with the place in the script, not a traceback."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

import pilot
from pilot.core.errors import REFUSAL, PilotError

_LIBRARIES = ("<", *{f"{path}/" for path in [*sysconfig.get_paths().values(), Path(pilot.__file__).parent]})

_before = sys.excepthook


def show_in_one_line() -> None:
    """Do so from now on; any other exception is shown as usual, with its traceback."""
    global _before
    if sys.excepthook is not _show:
        _before, sys.excepthook = sys.excepthook, _show


def line(error: BaseException) -> str:
    """``error`` with its place: the innermost frame that is not in a library."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    place = f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""
    return f"{REFUSAL}{place}{error}"


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, PilotError):
        _before(kind, error, trace)
        return
    print(line(error), file=sys.stderr)
    raise SystemExit(error.exit_status)
