"""``pilot trace record`` against a real Slurm."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilot.research.traces.changes import read_changes
from tests.slurm.lab import Lab, LabConfig, missing, new_folder, running_lab, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(missing()), reason=missing() or "Slurm is here")]


@pytest.fixture
def lab() -> Iterator[Lab]:
    with running_lab(new_folder(), LabConfig(nodes=3, proctrack="pgid")) as running:
        yield running


def test_what_a_real_slurm_has_idle_becomes_a_trace(lab: Lab, tmp_path: Path) -> None:
    output = tmp_path / "idle.csv"
    options = ["--scheduler", "slurm", "--every-s", "1", "--preemptable", "preempt"]
    command = [sys.executable, "-m", "pilot.cli.main", "trace", "record", str(output), *options]
    recorder = subprocess.Popen(command, env=lab.environment, stdout=subprocess.PIPE, text=True)
    busy, held, _ = lab.nodes

    def recorded(row: str) -> bool:
        return output.exists() and row in output.read_text()

    wait_for(lambda: all(recorded(f"{node},join") for node in lab.nodes), "all nodes are recorded", limit_s=60)
    lab.sbatch("-p", "preempt", "-w", held, "--wrap", "sleep 600")
    # It ends by itself: on a busy machine, Slurm may take minutes to get rid of a cancelled one.
    over = tmp_path / "over"
    lab.sbatch("-p", "high", "-w", busy, "--wrap", f"until [ -e {over} ]; do sleep 0.2; done")
    wait_for(lambda: recorded(f"{busy},leave"), "a job takes a node", limit_s=60)
    over.touch()
    wait_for(lambda: output.read_text().count(f"{busy},join") == 2, "the node is idle again", limit_s=240)
    recorder.send_signal(signal.SIGINT)
    printed, _ = recorder.communicate(timeout=60)
    assert recorder.returncode == 0
    changes = read_changes(output)
    assert f"{len(changes)} changes written" in printed
    assert held not in [node for change in changes for node in change.left]
