"""``python tests/told/run_one.py ID``: runs one script of told.tsv as an ordinary program, to the end of its training.

Its group is that of its environment. ``TOLD_EPOCHS`` (3): it trains at least so many epochs, where it can.
"""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.told import TABLE, replay


def main(name: str) -> None:
    csv.field_size_limit(1 << 24)
    with TABLE.open() as file:
        (row,) = [row for row in csv.DictReader(file, delimiter="\t") if row["id"] == name]
    test, _, number = name.rpartition("#")
    script = {"test": f"tests/{test}", "index": int(row["index"]), "number": int(number)}
    epochs = int(os.environ.get("TOLD_EPOCHS", "3")) if int(row["epochs"]) else 0
    replay.install()
    replay.Replay(script, replay._group_of, epochs, fresh=False).go()


if __name__ == "__main__":
    main(sys.argv[1])
