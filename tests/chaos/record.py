"""A run of a pool with its record, which is printed as it grows and stored with the pool's logs if an invariant is
violated.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pilot.agent import workdir
from pilot.cli.demo.leftovers import left_behind, unowned
from tests.chaos import network
from tests.pools import Pool

Note = Callable[[str], None]
"""Adds a line to the record."""
STORED = Path("out") / "chaos"
_LOGS = ("agent*.log", "run/coordinator.log", "run/journal.jsonl", "run/trainers/*/logs/*.log", "state/pilot/*.log")


def recorded(seed: int, run: Callable[[Pool, Note, bool], list[str]]) -> list[str]:
    """Call ``run`` with a pool, a function that adds to the record, and whether it may do what only root can: cut
    networks and fill disks. Return its violations, any error, and the leftovers.
    """
    if left_out := network.unavailable():
        print(f"left out: cut networks and full disks ({left_out})", flush=True)
    lines, before = list[str](), unowned()

    def note(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    with tempfile.TemporaryDirectory(prefix="pilot-chaos-") as folder:
        pool = Pool(Path(folder))
        try:
            violations = run(pool, note, not left_out)
        except Exception as error:
            violations = [f"{type(error).__name__}: {error}"]
        finally:
            pool.end()
            workdir.sweep()
        violations += [f"left behind: {name}" for name in left_behind(pool.run_dir, before)]
        if violations:
            lines += [f"FAILED: {line}" for line in violations]
            print(f"its logs are in {_stored(pool, seed, lines)}")
    return violations


def _stored(pool: Pool, seed: int, lines: list[str]) -> Path:
    """Copy the logs to a permanent folder, with the record."""
    folder = STORED / f"seed{seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True)
    (folder / "storm.txt").write_text("\n".join(lines) + "\n")
    for pattern in _LOGS:
        for path in pool.folder.glob(pattern):
            copy = folder / path.relative_to(pool.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    return folder
