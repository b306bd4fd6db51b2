"""What a storm did, said as it happens and kept with the logs of the pool where something did not hold."""

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
        """Copy the logs to a folder that stays, with what the storm did and what did not hold."""
        folder = KEPT / f"seed{seed}-{time.strftime('%Y%m%d-%H%M%S')}"
        folder.mkdir(parents=True)
        (folder / "storm.txt").write_text("\n".join([*self.lines, *(f"FAILED: {line}" for line in wrong)]) + "\n")
        for pattern in _LOGS:
            for path in pool.folder.glob(pattern):
                copy = folder / path.relative_to(pool.folder)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
        return folder
