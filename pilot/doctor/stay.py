"""The job that measures how long PBS lets a job live after TERM: it ignores TERM and takes notes until it is killed."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

TICK_S = 0.1
HERE, TERM = "here", "TERM"


def main(notes: Path) -> None:
    """Append a line to ``notes`` every ``TICK_S``: a word and the time in seconds.

    The file is closed after each line, so that the last one is visible on a shared file system once the job is dead.
    """

    def note(word: str) -> None:
        with notes.open("a") as file:
            file.write(f"{word} {time.monotonic():.2f}\n")

    signal.signal(signal.SIGTERM, lambda *_: note(TERM))
    while True:
        note(HERE)
        time.sleep(TICK_S)


def lived_s(notes: str) -> float | None:
    """How long the job lived after the first TERM; None if it got none. An incomplete last line is ignored."""
    lines = notes.rpartition("\n")[0].splitlines()
    seen = [(word, float(at_s)) for word, _, at_s in (line.partition(" ") for line in lines)]
    first = next((at_s for word, at_s in seen if word == TERM), None)
    return None if first is None else seen[-1][1] - first


if __name__ == "__main__":
    main(Path(sys.argv[1]))
