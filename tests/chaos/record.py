"""A record of the storm, printed as it happens and kept with the pool's logs if an invariant was violated."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.pools import Pool

KEPT = Path("out") / "chaos"
_LOGS = ("agent*.log", "run/coordinator.log", "run/journal.jsonl", "run/trainers/*/logs/*.log", "state/pilot/*.log")


@dataclass
class Record:
    """The storm's lines."""

    lines: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        """Print it, and remember it."""
        self.lines.append(line)
        print(line, flush=True)

    def keep(self, pool: Pool, seed: int, wrong: list[str]) -> Path:
        """Copy the logs to a permanent folder, with the storm's record and the violations."""
        folder = KEPT / f"seed{seed}-{time.strftime('%Y%m%d-%H%M%S')}"
        folder.mkdir(parents=True)
        (folder / "storm.txt").write_text("\n".join([*self.lines, *(f"FAILED: {line}" for line in wrong)]) + "\n")
        for pattern in _LOGS:
            for path in pool.folder.glob(pattern):
                copy = folder / path.relative_to(pool.folder)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
        return folder
