"""A pool whose pilots are jobs of a lab, and jobs that preempt them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilot.client.pools import pool_at
from tests.pools import Pool
from tests.slurm.lab import Lab, wait_for

EPOCHS = 400
"""More than any test waits for."""

SITE = """
from site_configs.slurm_lab import site as lab

site = lab.replace(name="lab", check="off", {changes})
"""


@dataclass
class SlurmPool(Pool):
    """A pool whose pilots are jobs of the lab."""

    lab: Lab | None = None

    def environment(self) -> dict[str, str]:
        """The pool's environment, and the lab's."""
        assert self.lab is not None
        return {**super().environment(), "SLURM_CONF": str(self.lab.conf)}

    def up_on(self, pilots: int, **changes: object) -> None:
        """Start the coordinator on the lab's site with some fields changed, and wait for all pilots."""
        site = self.folder / "lab.py"
        site.write_text(SITE.format(changes=", ".join(f"{name}={value!r}" for name, value in changes.items())))
        self.pilot("up", "--site", site, "--pilots", str(pilots))
        self.until_pilots(pilots)

    def jobs(self) -> list[str]:
        """The jobs of the pilots that are in the pool and connected."""
        return [pilot.job for pilot in pool_at(self.run_dir).pilots().pilots if pilot.connected]

    def job_on(self, node: str) -> str:
        """The job that runs on a node of the lab."""
        assert self.lab is not None
        return self.lab.run("squeue", "-h", "-w", node, "-o", "%A").strip()


def training(pool: Any, nodes: int, **site: object) -> str:
    """Start a pool with this many pilots, and a trainer on all of them; returns the trainer's name."""
    pool.up_on(nodes, **site)
    name: str = pool.submit_elastic(nodes, EPOCHS)
    pool.trains(name, nodes)
    return name


def high_priority(lab: Lab, *options: str, run_s: float = 5) -> tuple[str, Path, float]:
    """Submit a job that preempts; returns its id, the file in which it notes its start, and its submission time."""
    note = lab.folder / f"high-{time.monotonic_ns()}"
    submitted_s = time.time()
    job = lab.sbatch("-p", "high", *options, "--wrap", f"date +%s.%N > {note}.new; mv {note}.new {note}; sleep {run_s}")
    return job, note, submitted_s


def start_delay_s(note: Path, submitted_s: float, limit_s: float = 90) -> float:
    """How long the job that writes ``note`` waited for its nodes."""
    wait_for(note.exists, "the high-priority job runs", limit_s=limit_s)
    return float(note.read_text()) - submitted_s
