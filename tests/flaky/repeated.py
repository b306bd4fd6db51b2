"""What CI repeats: ``python -m tests.flaky.repeated FOLDER [NAME]``.

With NAME it lists the tests that failed in ``NAME.jsonl``; exit status 1 if the run did not finish. Without, it names
the repeated tests, with the text of their first failure.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.flaky.outcomes import RUNNING, failures, read

AGAIN = "again-"


def report(folder: Path) -> str:
    """Empty if nothing failed at first."""
    files = sorted(folder.glob("*.jsonl"))
    first = {test: text for path in files if not path.name.startswith(AGAIN) for test, text in failures(path).items()}
    again = [path for path in files if path.name.startswith(AGAIN)]
    ran = {outcome.test for path in again for outcome in read(path)}
    failed = {test for path in again for test in failures(path)}
    if not first:
        return ""
    words = {test: _word(ran=test in ran, failed=test in failed) for test in first}
    texts = [f"--- {test}: {words[test]}\n{text}" for test, text in first.items()]
    names = [f"{word}: {test}" for test, word in words.items()]
    return "\n".join([*texts, f"=== {len(first)} tests failed at first (how is above)", *names])


def _word(*, ran: bool, failed: bool) -> str:
    if failed:
        return "failed again"
    return "FLAKY: failed at first, then passed" if ran else "failed, and was not repeated"


def to_repeat(folder: Path, name: str) -> list[str]:
    """The tests that failed; SystemExit if the run is incomplete, since some tests' outcomes are then unknown."""
    if broken_off := list(folder.glob(f"{name}.*{RUNNING}")):
        sys.exit(f"pytest did not come to the end of its tests: {broken_off[0].name}")
    return list(failures(folder / f"{name}.jsonl"))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print("\n".join(to_repeat(Path(sys.argv[1]), sys.argv[2])))
    elif text := report(Path(sys.argv[1])):
        print(text)
