"""A pool of an ordinary user whose pilots are jobs of a PBS lab, and jobs that preempt them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pilot.protocol.pool_status import PoolStatus
from tests.pbs.lab import CPUS, Lab, options
from tests.pools import Pool

USER = "ada"
REPOSITORY = Path(__file__).parents[2]

SITE = """
from pilot.site.site import Site

site = Site(
    name="pbs", scheduler="pbspro", queue="preemptable", cores_per_node={cpus}, bind_address="127.0.0.1",
    interface="lo", poll_s=2, command_timeout_s=10, heartbeat_s=1, silent_s=10, orphan_s=30, form_timeout_s=30,
    checkpoint_interval_s=10, check="off",
    prologue="export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-1}} PYTHONPATH={repository}",
).replace({changes})
"""


@dataclass
class PbsPool(Pool):
    """A pool whose pilots are jobs of the lab. Its folder belongs to :data:`USER`."""

    lab: Lab | None = None

    def command(self, *arguments: str) -> list[str]:
        """As the user types it on the server's host."""
        assert self.lab is not None
        return self.lab.within(*super().command(*arguments), folder=str(self.folder), user=USER)

    def environment(self) -> dict[str, str]:
        """Python's packages are where the tests have them; the rest is the user's: a temporary folder chosen by root is
        not passed on.
        """
        ours = {name: value for name, value in super().environment().items() if name != "TMPDIR"}
        return {**ours, "PYTHONPATH": str(REPOSITORY), "LC_ALL": "C.UTF-8"}

    def status(self) -> PoolStatus:
        """Asked by the user: nobody reads another user's connection file."""
        return msgspec.json.decode(self.pilot("status", "--json").stdout, type=PoolStatus)

    def up_on(self, pilots: int | None, **changes: object) -> None:
        """Start the coordinator on the lab's site with some fields changed, and wait for all pilots; None: as many as
        the trainers can use.
        """
        site = self.write_site(**changes)
        self.pilot("up", "--site", site, *([] if pilots is None else ["--pilots", str(pilots)]))
        self.until_pilots(pilots or 0)

    def write_site(self, **changes: object) -> Path:
        """The lab's site with some fields changed."""
        site = self.folder / "lab.py"
        changed = ", ".join(f"{name}={value!r}" for name, value in changes.items())
        site.write_text(SITE.format(cpus=CPUS, changes=changed, repository=REPOSITORY))
        return site

    def python(self, code: str) -> str:
        """The output of ``code``, run by the user."""
        assert self.lab is not None
        command = self.lab.within(sys.executable, "-P", "-c", code, folder=str(self.folder), user=USER)
        return subprocess.run(command, env=self.environment(), check=True, capture_output=True, text=True).stdout

    def left_s(self) -> float:
        """When the last departed agent left: a job's output is written directly."""
        logs = (self.run_dir / "pilots").glob("*.stderr")
        return max(log.stat().st_mtime for log in logs if " left: " in log.read_text())


def high_priority(lab: Lab, *, nodes: int = 1, run_s: float = 3) -> tuple[str, Path, float]:
    """Submit a job that preempts; returns its id, the file in which it notes its start, and its submission time."""
    note = lab.folder / "notes" / f"high-{time.monotonic_ns()}"
    note.parent.mkdir(exist_ok=True)
    note.parent.chmod(0o777)
    script = f"date +%s.%N > {note}.new; mv {note}.new {note}; sleep {run_s}"
    submitted_s = time.time()
    job = lab.qsub("-q", "demand", *options(nodes), "--", "/bin/sh", "-c", script, user=USER)
    return job, note, submitted_s


def own_folder(lab: Lab) -> Path:
    """A new folder owned by :data:`USER`."""
    folder = lab.folder / f"pool-{time.monotonic_ns()}"
    folder.mkdir()
    os.chown(folder, 4711, 4711)
    return folder
