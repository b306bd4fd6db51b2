"""What the end of a script's output says about its end."""

from __future__ import annotations

from pilot.core.errors import REFUSAL

TRACEBACK = "Traceback (most recent call last)"
_TAIL_LINES = 12


def last_words(tail: str) -> str:
    """What ended the script, from ``tail``: an error of ours; or the end of the last traceback; or the last lines."""
    lines = tail.rstrip().splitlines()
    if is_refusal(tail):
        return lines[-1].removeprefix(REFUSAL)
    starts = [index for index, line in enumerate(lines) if line.startswith(TRACEBACK)]
    return "\n".join(lines[starts[-1] if starts else 0 :][-_TAIL_LINES:])


def is_refusal(tail: str) -> bool:
    """Whether one of our errors ended the script, rather than its own."""
    return tail.rstrip().rpartition("\n")[2].startswith(REFUSAL)
