"""``python -m tests.ported.checks [NAME ...]``: prints how long ``pilot check`` takes for each ported script, with the
verdict; ``--limit-s`` is that of each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time

from tests.ported.pairs import PAIRS, Pair

LIMIT_S = 120.0


def checked(pair: Pair, limit_s: float = LIMIT_S) -> tuple[float, dict[str, object]]:
    """Return the seconds that a check of the elastic version took, and its answer."""
    command = [sys.executable, "-m", "pilot", "check", "--json", "--limit-s", str(limit_s), str(pair.elastic)]
    with tempfile.TemporaryDirectory() as folder:
        begun_s = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        took_s = time.monotonic() - begun_s
    return took_s, json.loads(done.stdout)


def main(names: list[str]) -> None:
    for pair in PAIRS:
        if not names or pair.name in names:
            took_s, answer = checked(pair)
            print(f"{pair.name}\t{took_s:.0f}\t{answer['script_class']}\t{answer['text']}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
