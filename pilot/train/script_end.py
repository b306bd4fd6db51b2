"""What is left to do for a script that left its loop by ``break``, when it has run to its end.

A generator that is closed cannot tell ``break`` from an exception in the loop's body; the end of the script can.
"""

from __future__ import annotations

from collections.abc import Callable

from pilot.train.release import Released

_left: list[Callable[[], None]] = []


def at_good_end(call: Callable[[], None]) -> None:
    """Have ``call`` done if the script ends well."""
    _left.append(call)


def script_ended(leaving: SystemExit | None = None) -> None:
    """The script ran to its end, or was left by ``sys.exit``; called by whoever ran it."""
    if leaving is not None and (leaving.code not in (None, 0) or isinstance(leaving, Released)):
        return
    while _left:
        _left.pop()()
