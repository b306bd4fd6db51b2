"""What keeps the coordinator's memory flat."""

from __future__ import annotations

import subprocess
import sys

LIVES_ON = """
import gc
loaded = [[] for _ in range(200_000)]  # as modules are
from pilot.service import process
process.freeze_what_is_loaded()
before = gc.get_stats()[2]["collections"]
kept = []
for _ in range(200):
    kept += [[] for _ in range(50)]
    for _ in range(1000):
        cycle = []
        cycle.append(cycle)
print(gc.get_stats()[2]["collections"] - before)
"""


def test_what_was_loaded_does_not_postpone_full_collections() -> None:
    done = subprocess.run([sys.executable, "-c", LIVES_ON], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) > 0
