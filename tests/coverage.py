"""``python -m tests.coverage FILE``: which share of each room's statements the tests ran, from pytest-cov's JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path


def main(file: Path) -> None:
    """Print one line per room, and one for all."""
    lines, covered = Counter[str](), Counter[str]()
    for name, report in json.loads(file.read_text())["files"].items():
        for room in (str(Path(name).parent), "all"):
            lines[room] += report["summary"]["num_statements"]
            covered[room] += report["summary"]["covered_lines"]
    for room in sorted(lines, key=lambda room: (room == "all", room)):
        share = covered[room] / max(1, lines[room])
        print(f"{room:32} {covered[room]:6,} of {lines[room]:6,} statements  {share:6.1%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
