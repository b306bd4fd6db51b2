"""A lab, and a pool of real pilots on it, per test; each leaves nothing behind."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pilot.cli.demo.leftovers import left_behind, segments
from pilot.cli.pool import ask
from tests.pools import Plain, Pool
from tests.slurm.lab import Lab, LabConfig, missing, running_lab, wait_for

SITE = """
from site_configs.slurm_lab import site as lab

site = lab.replace(name="lab", {changes})
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are marked; without Slurm or root they are skipped, and say why."""
    reason = missing()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slurm)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def lab(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A lab of the test's own; ``indirect`` parameters are its :class:`LabConfig`."""
    folder = Path(tempfile.mkdtemp(prefix="lab"))  # short: sockets are in it
    try:
        with running_lab(folder, getattr(request, "param", LabConfig())) as running:
            monkeypatch.setenv("SLURM_CONF", str(running.conf))
            yield running
            wait_for(lambda: not running.queued(), "no job in the queue", limit_s=20)
            wait_for(lambda: not running.job_processes(), "no process of a job", limit_s=20)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class SlurmPool(Pool):
    """A pool whose pilots are jobs of the lab."""

    lab: Lab | None = None

    def up_on(self, pilots: int, **changes: object) -> None:
        """Start the coordinator on the lab's site with some fields changed, and wait for all pilots."""
        site = self.folder / "lab.py"
        site.write_text(SITE.format(changes=", ".join(f"{name}={value!r}" for name, value in changes.items())))
        self.pilot("up", "--site", site, "--pilots", str(pilots))
        self.until_pilots(pilots)

    def until_pilots(self, count: int) -> Plain:
        """Wait until so many pilots are in the pool and stay."""
        return self.until(f"{count} pilots", lambda s: sum(not n["leaving"] for n in s["pool"]) == count)

    def until_ended(self, ending: str, count: int) -> Plain:
        """Wait until so many jobs have ended in this way."""
        return self.until(f"{count} jobs {ending}", lambda s: s["keeper"]["endings"].get(ending, 0) >= count)

    def jobs(self) -> list[str]:
        """The jobs of the pilots that are in the pool and connected."""
        return [pilot["job"] for pilot in ask(self.run_dir, "pilots") if pilot["connected"]]

    def job_on(self, node: str) -> str:
        """The job that runs on a node of the lab."""
        assert self.lab is not None
        return self.lab.run("squeue", "-h", "-w", node, "-o", "%A").strip()


@pytest.fixture
def pool(lab: Lab, tmp_path: Path) -> Iterator[SlurmPool]:
    """A pool that is not up yet."""
    before = segments()
    pool = SlurmPool(tmp_path, lab=lab)
    try:
        yield pool
    finally:
        pool.end()
    assert left_behind(pool.run_dir, before) == []


def high_priority(lab: Lab, *options: str, run_s: float = 5) -> tuple[str, Path, float]:
    """Submit a job that preempts: its id, the file in which it notes its start, and when it was submitted."""
    note = lab.folder / f"high-{time.monotonic_ns()}"
    submitted_s = time.time()
    job = lab.sbatch("-p", "high", *options, "--wrap", f"date +%s.%N > {note}.new; mv {note}.new {note}; sleep {run_s}")
    return job, note, submitted_s


def start_delay_s(note: Path, submitted_s: float, limit_s: float = 90) -> float:
    """How long the job that writes ``note`` waited for its nodes."""
    wait_for(note.exists, "the high-priority job runs", limit_s=limit_s)
    return float(note.read_text()) - submitted_s
