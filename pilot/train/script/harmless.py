"""Looks at a script that only tell its author of something: one that fails must not end the training."""

from __future__ import annotations

from collections.abc import Callable

from pilot.core.errors import PilotError
from pilot.io import crash_log
from pilot.train.script import refusal


class Harmless:
    """Looks, until one fails: what was to be told from then on is not."""

    def __init__(self) -> None:
        self._has_failed = False

    def look(self, *looks: Callable[[], object]) -> None:
        """Do these; what they refuse is refused."""
        if self._has_failed:
            return
        try:
            for one in looks:
                one()
        except PilotError:
            raise
        except Exception:
            self._has_failed = True
            failed()


def failed() -> None:
    """A look has raised the current exception."""
    refusal.note(
        "pilot failed to look at what this script keeps besides the session's state, and does not tell of that any"
        f" more; training goes on; please report it: {crash_log.saved()}"
    )
