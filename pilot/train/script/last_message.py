"""What a script's process tells its agent as it ends: the exception that ends it, and what keeps it from ending.

The agent could only guess at both from the log, of which a long message leaves only its end.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress

import torch
from torch.distributed import DistError

from pilot.core.errors import PilotError, UserError, one_line
from pilot.core.pool.evidence import TRACEBACK, head, last_words
from pilot.protocol import wire
from pilot.protocol.framing import framed
from pilot.train.node.devices import exit_status, is_of_gpu
from pilot.train.script import refusal

MOMENT_S = 5.0
"""A process may take this long to end after its script before the agent is told what it waits for."""

NAMED = 5
"""Most threads and processes that are named."""

_WATCH = "pilot: end of the script"

_OF_SCRIPTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""Exceptions that are a script's whatever their message says."""

_OF_NODES = re.compile(r"[Mm]emory|CUDA|HIP|GPU|NVIDIA|shared object|killed|died|terminated|unexpected")
"""Words in messages about what a node lacks, or what happened to a process there."""


def report(error: BaseException) -> None:
    """Tell the agent, if there is one, that ``error`` ends the script."""
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return
    texts = one_line(words(error)), one_line(origin(error))
    no_memory = any(isinstance(cause, (MemoryError, torch.OutOfMemoryError)) for cause in _causes(error))
    send(wire.ScriptRaised(os.environ.get("PILOT_TRAINER", ""), _status(error), *texts, no_memory))


def watch_end() -> None:
    """From now on, when its script has ended, tell the agent what keeps this process for longer than a moment."""
    if "PILOT_CONTROL_FD" in os.environ:
        with suppress(RuntimeError):  # the node allows no more threads
            threading.Thread(target=_tell_what_holds, name=_WATCH, daemon=True).start()


def _tell_what_holds() -> None:
    told = ""
    while True:
        time.sleep(MOMENT_S)
        if (holds := what_holds()) != told:
            told = holds
            text = one_line(f"its script has ended, but not {holds}")
            send(wire.Remark(os.environ.get("PILOT_TRAINER", ""), text, holds=True))


def what_holds() -> str:
    """What a process waits for after its script's end, in words."""
    kinds = {
        "thread": [t.name for t in threading.enumerate() if not (t.daemon or t is threading.main_thread())],
        "process": [process.name for process in multiprocessing.active_children() if not process.daemon],
    }
    named = [f"its {kind} {name}" for kind, names in kinds.items() for name in names]
    more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return f"{', '.join(named[:NAMED])}{more}" if named else "what it does at its exit (atexit)"


def send(message: wire.FromAgent) -> None:
    """Send ``message`` to the agent, if there is one: the session's socket may never have been made. A process that the
    script has forked ends without a word.
    """
    if "PILOT_CONTROL_FD" not in os.environ or os.getpid() != os.getsid(0):
        return
    try:
        with socket.socket(fileno=os.dup(int(os.environ["PILOT_CONTROL_FD"]))) as control:
            control.sendall(framed(wire.encode(message)))
    except OSError:
        return  # the agent has ended, or the script has closed its descriptors


def words(error: BaseException) -> str:
    """The class of ``error`` and its message, in one line of limited length; "": only the log may have more."""
    if isinstance(error, PilotError):
        return refusal.placed(error)
    if isinstance(error, SystemExit):
        why = head(error.code) if isinstance(error.code, str) else words(error.__context__) if error.__context__ else ""
        return why and f"{why} (exit status {_status(error)})"
    text = _message(error)
    if TRACEBACK in text:  # of an exception in another process, a DataLoader's
        return last_words(text)
    name = type(error).__qualname__ if type(error).__module__ in ("builtins", "__main__") else _full_name(error)
    parts = [f"{name}: {text}" if text else name]
    if isinstance(error, BaseExceptionGroup):
        parts.append(words(error.exceptions[0]))
    return head(": ".join(parts))


def origin(error: BaseException) -> str:
    """The class of ``error`` and its line in the script, which are the same wherever the script is wrong; "" if a node
    may be at fault, or nothing can be said."""
    if isinstance(error, SystemExit) and error.__context__ is not None:
        return origin(error.__context__)
    place = refusal.place(traceback.extract_tb(error.__traceback__))
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}: "
    return f"{place}{_full_name(error)}" if place and not any(map(_may_be_of_node, _causes(error))) else ""


def _status(error: BaseException) -> int:
    """The exit status with which ``error`` ends the script."""
    if isinstance(error, SystemExit):
        return error.code & 0xFF if isinstance(error.code, int) else 1
    return error.exit_status if isinstance(error, PilotError) else exit_status(error)


def _may_be_of_node(error: BaseException) -> bool:
    if isinstance(error, (OSError, MemoryError, DistError)) or is_of_gpu(error):
        return True
    if isinstance(error, PilotError) and not isinstance(error, UserError):
        return True
    return not isinstance(error, _OF_SCRIPTS) and _OF_NODES.search(_message(error)) is not None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """``error``, what it was raised from or while handling, and the parts of groups."""
    todo, seen = [error], set[int]()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        context = None if one.__suppress_context__ else one.__context__
        parts = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        todo += [other for other in (one.__cause__, context, *parts) if other is not None]


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # whatever a user's class does there
        return ""


def _full_name(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"
