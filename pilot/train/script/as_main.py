"""Runs a script in an existing process as ``python script`` would."""

from __future__ import annotations

import builtins
import sys
import types
from typing import Any, NoReturn

from pilot.train.node.devices import exit_status
from pilot.train.script import last_message


def main_module(script: str) -> dict[str, Any]:
    """Return the namespace of a new ``__main__`` for the script at this path."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=script, __builtins__=builtins)
    sys.modules["__main__"] = module
    return module.__dict__


def fail(error: BaseException) -> NoReturn:
    """Report ``error`` to the agent, print the traceback from the script's frame on (or our own error), and exit as the
    interpreter would, but with a special status if the GPU failed. Call it where ``error`` was caught.
    """
    last_message.report(error)
    traceback = error.__traceback__.tb_next if error.__traceback__ else None
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)
    sys.exit(exit_status(error))
