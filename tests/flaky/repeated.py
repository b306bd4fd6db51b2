"""``python -m tests.flaky.repeated FOLDER``: names the tests that CI repeated, with the text of their first failure."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.flaky.outcomes import failures

FIRST, AGAIN = "first.jsonl", "again.jsonl"


def told(folder: Path) -> str:
    """Empty where nothing failed at first."""
    first, again = failures(folder / FIRST), failures(folder / AGAIN)
    if not first:
        return ""
    words = {test: "failed again" if test in again else "FLAKY: failed at first, then passed" for test in first}
    texts = [f"--- {test}: {words[test]}\n{text}" for test, text in first.items()]
    names = [f"{word}: {test}" for test, word in words.items()]
    return "\n".join([*texts, f"=== {len(first)} tests were repeated (their first failures are above)", *names])


if __name__ == "__main__":
    if text := told(Path(sys.argv[1])):
        print(text)
