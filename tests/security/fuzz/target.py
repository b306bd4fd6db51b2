"""Fuzzing targets, and what counts as a refusal."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Collection
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilot.core.errors import PilotError
from pilot.host.printable import PrintableStream

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


def said_once(call: Callable[[], int], statuses: Collection[int]) -> int:
    """The exit status of ``call``; :class:`Wrong` if it is an unexpected one, or an error is not one clear line."""
    # As main() sets them.
    out, err = (PrintableStream(io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = call()
        except SystemExit as end:
            status = int(end.code or 0)
    said = err.buffer.getvalue().decode()
    if status not in statuses or "internal error" in said or "Traceback" in said:
        raise Wrong(f"status {status}: {said[-500:]!r}{_log(said)}")
    if status == 2:
        lines = said.removesuffix("\n").split("\n")
        for line in lines:
            check_line(line)
            if len(lines) > 1 and not line.startswith("pilot: "):  # each of several names has a line
                raise Wrong(f"more than one line: {said[-500:]!r}")
    return status


def _log(said: str) -> str:
    """The last line of the traceback left by a bug."""
    if "traceback in " not in said:
        return ""
    lines = Path(said.rpartition("traceback in ")[2].strip()).read_text().splitlines()
    where = [line.strip() for line in lines if "/pilot/" in line][-1:]
    return f" {lines[-1][:200]} {' '.join(where)}"
