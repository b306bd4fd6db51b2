"""What a target of the fuzzer is, and what counts as a refusal."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilot.core.errors import PilotError

ACCEPTED = "accepted"
REFUSED = "refused"
LONGEST_LINE = 2000
"""A refusal that is longer than this buries what it says."""


class Wrong(AssertionError):
    """The input was taken or answered as it must not be; the message says how."""


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of input.

    Parameters
    ----------
    inputs : how many ``make fuzz`` tries; ``few`` of them, evenly spaced, are tried by ``make test``
    make : one input from a random stream and its number
    prepare : called once in a child with a folder of its own; what it gives goes to ``attempt``
    attempt : tries one input; its outcome in a word, or the :class:`~pilot.core.errors.PilotError` that refused it
    """

    name: str
    inputs: int
    few: int
    make: Callable[[random.Random, int], Any]
    prepare: Callable[[Path], Any]
    attempt: Callable[[Any, Any], str]
    limit_s: float = 20.0
    memory_bytes: int = 1 << 30

    def input(self, seed: int, number: int) -> Any:
        """Input ``number``: the same whatever is tried beside it."""
        return self.make(random.Random(f"{self.name}:{seed}:{number}"), number)


def outcome(attempt: Callable[[], str]) -> str:
    """What ``attempt`` came to; :class:`Wrong` if it refused in other than one clear line."""
    try:
        return attempt()
    except PilotError as error:
        check_line(str(error))
        return REFUSED


def check_line(text: str) -> None:
    """One line that can be shown: no line breaks, no control characters, not endless."""
    if not text or len(text) > LONGEST_LINE or not text.isprintable():
        raise Wrong(f"not one line that can be shown: {text[:200]!r} ({len(text)} characters)")
