"""What a fuzzing target is, and what counts as a refusal."""

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
"""A refusal longer than this buries its message."""


class Wrong(AssertionError):
    """The input was wrongly accepted or answered; the message says how."""


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of input.

    Parameters
    ----------
    inputs : how many ``make fuzz`` tries; ``few`` of them, evenly spaced, are tried by ``make test``
    attempt : tries one input; its outcome in a word, or the :class:`~pilot.core.errors.PilotError` that refused it
    make : generates one input from a random stream and its number; default: the stream, if ``attempt`` makes it
    prepare : called once per child, with its own folder; its result is passed to ``attempt``; default: the folder
    """

    name: str
    inputs: int
    few: int
    attempt: Callable[[Any, Any], str]
    make: Callable[[random.Random, int], Any] = lambda rng, _: rng
    prepare: Callable[[Path], Any] = lambda folder: folder
    limit_s: float = 20.0
    memory_bytes: int = 1 << 30

    def input(self, seed: int, number: int) -> Any:
        """Input ``number``: the same whichever others are tried."""
        return self.make(random.Random(f"{self.name}:{seed}:{number}"), number)


def outcome(attempt: Callable[[], str]) -> str:
    """The outcome of ``attempt``; :class:`Wrong` if it refused with anything but one clear line."""
    try:
        return attempt()
    except PilotError as error:
        check_line(str(error))
        return REFUSED


def check_line(text: str) -> None:
    """One displayable line: no line breaks, no control characters, of limited length."""
    if not text or len(text) > LONGEST_LINE or not text.isprintable():
        raise Wrong(f"not one line that can be shown: {text[:200]!r} ({len(text)} characters)")
