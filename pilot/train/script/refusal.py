"""When one of our errors ends a user's script: print one line with the place in the script, not a traceback. And notes,
which end nothing.
"""

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
    """Do so from now on; any other exception is shown as usual, with its traceback."""
    if not isinstance(sys.excepthook, _OneLine):
        sys.excepthook = _OneLine(sys.excepthook)
    if not isinstance(threading.excepthook, _EndOfThread):
        threading.excepthook = _EndOfThread(threading.excepthook)


def line(error: BaseException) -> str:
    """``error`` with its place."""
    return f"{REFUSAL}{_place(traceback.extract_tb(error.__traceback__))}{error}"


def note(text: str) -> None:
    """A line in the script's log, with its place: nothing is refused, but its author should know."""
    print(f"pilot: {_place(traceback.extract_stack())}{text}", file=sys.stderr, flush=True)


def is_of_a_library(filename: str) -> bool:
    """Whether it is no file of the script's."""
    return filename.startswith(_LIBRARIES)


def _place(frames: traceback.StackSummary) -> str:
    """The innermost frame that is not in a library."""
    own = [frame for frame in frames if not is_of_a_library(frame.filename)]
    return f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""


@dataclass(frozen=True, slots=True)
class _OneLine:
    """The hook. ``before`` may lead to another one: torch's ``init_process_group`` wraps the hook that it finds."""

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
    """The same for the script's threads. It ends the process: others would wait for what the thread was to bring."""

    before: Callable[[threading.ExceptHookArgs], object]

    def __call__(self, ended: threading.ExceptHookArgs) -> None:
        if not isinstance(ended.exc_value, PilotError):
            self.before(ended)
            return
        print(line(ended.exc_value), file=sys.__stderr__, flush=True)
        sys.stdout.flush()
        os._exit(ended.exc_value.exit_status)
