"""Prints our errors that end a script in one line with their place, without a traceback; also notes."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from pilot.core.errors import REFUSAL, PilotError

_LIBRARIES = ("<", *{f"{path}/" for path in [*sysconfig.get_paths().values(), Path(__file__).parents[2]]})


def show_in_one_line() -> None:
    """Show our errors in one line from now on; other exceptions are shown as usual, with a traceback."""
    if not isinstance(sys.excepthook, _OneLine):
        sys.excepthook = _OneLine(sys.excepthook)
    if not isinstance(threading.excepthook, _EndOfThread):
        threading.excepthook = _EndOfThread(threading.excepthook)


def line(error: BaseException) -> str:
    """Return the line with which ``error`` ends the script."""
    return f"{REFUSAL}{placed(error)}"


def placed(error: BaseException) -> str:
    """Return ``error`` with its place in the script."""
    return f"{place(traceback.extract_tb(error.__traceback__))}{error}"


def note(text: str) -> None:
    """Print a note for the script's author to its log, with the place in the script."""
    print(f"pilot: {place(traceback.extract_stack())}{text}", file=sys.stderr, flush=True)


def is_of_a_library(filename: str) -> bool:
    """Return whether ``filename`` is a file of a library, not of the script."""
    return filename.startswith(_LIBRARIES)


def place(frames: traceback.StackSummary) -> str:
    """Return the file and line of the innermost frame that is not in a library, as a prefix; "" if there is none."""
    own = [frame for frame in frames if not is_of_a_library(frame.filename)]
    return f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""


@dataclass(frozen=True, slots=True)
class _OneLine:
    """An ``excepthook`` that prints our errors in one line, and passes others to ``before``."""

    before: Callable[[type[BaseException], BaseException, TracebackType | None], object]

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, PilotError):
            self.before(kind, error, trace)
            return
        # Not sys.stderr: torch's hook puts a buffer there, which is lost when we exit.
        print(line(error), file=sys.__stderr__)
        raise SystemExit(error.exit_status)


@dataclass(frozen=True, slots=True)
class _EndOfThread:
    """A ``threading.excepthook`` like :class:`_OneLine`; our error ends the process, which others would wait for."""

    before: Callable[[threading.ExceptHookArgs], object]

    def __call__(self, ended: threading.ExceptHookArgs) -> None:
        if not isinstance(ended.exc_value, PilotError):
            self.before(ended)
            return
        print(line(ended.exc_value), file=sys.__stderr__, flush=True)
        sys.stdout.flush()
        os._exit(ended.exc_value.exit_status)
