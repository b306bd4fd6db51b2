"""The data plane with real workers, real MPI over TCP and real SIGKILLs: nothing is lost, nothing is done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pilot.core.events import LedgerRange
from pilot.core.ledger import Ledger
from pilot.io import wire
from tests.integration.plane import Plane, plane
from tests.integration.script import SAMPLES

SCRIPT = Path(__file__).with_name("script.py")
BATCH = ("--global-batch-size", "32")
STEPS_PER_EPOCH = -(-SAMPLES // 32)


def reference(folder: Path, *arguments: str) -> dict[str, Any]:
    """What the same script gives alone, undisturbed, in one plain process."""
    path = folder / "alone.pt"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PILOT_")}
    subprocess.run([sys.executable, str(SCRIPT), *arguments, "--save", str(path)], check=True, env=environment)
    result: dict[str, Any] = torch.load(path)
    return result


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name, tensor in one["model"].items():
        torch.testing.assert_close(tensor, other["model"][name], rtol=1e-12, atol=1e-15)


def assert_exactly_once(reports: Sequence[wire.Report], epochs: int) -> Ledger:
    ledger = Ledger()
    for report in reports:
        ledger.add(LedgerRange(*row) for row in report.ledger)
    verdict = ledger.exactly_once(dict.fromkeys(range(epochs), SAMPLES))
    assert verdict.proved, verdict.text
    return ledger


def steps_of(cluster: Plane) -> list[int]:
    return [report.step for report in cluster.reports()]


def finish(cluster: Plane, gate: Path) -> wire.WorkerFinished:
    gate.touch()
    finished = cluster.wait_finished()
    cluster.stop()
    return finished


@pytest.mark.slow
def test_rescales_a_pause_and_two_kills_leave_the_parameters_as_they_would_have_been(tmp_path: Path) -> None:
    epochs, gate, saved = 60, tmp_path / "gate", tmp_path / "elastic.pt"
    arguments = ("--epochs", str(epochs), *BATCH)
    with plane(tmp_path, SCRIPT, *arguments, "--save", str(saved), "--step-s", "0.01", "--gate", str(gate)) as cluster:
        a, b, c, d = cluster.start(4)
        steps = [cluster.wait_up(cluster.form([a])).step]

        def go_on() -> None:
            cluster.wait_step(steps[-1] + 1)

        def rescale(members: list[Any], *, switch: bool = True) -> None:
            if switch:
                go_on()
            up = cluster.wait_up(cluster.form(members, switch=switch))
            assert up.resumed is None
            assert up.step > steps[-1]
            steps.append(up.step)

        rescale([a, b])
        rescale([a, b, c, d])
        rescale([d, b, a])  # c parks, another leads
        go_on()
        cluster.kill(b)
        cluster.dissolve()
        rescale([a, c, d], switch=False)
        rescale([a, c])
        go_on()
        paused = cluster.pause()
        up = cluster.wait_up(cluster.form([c, d, a]))
        assert up.step == paused
        steps.append(up.step)
        go_on()
        cluster.kill(c)
        cluster.dissolve()
        rescale([d, a], switch=False)
        rescale([d])
        finished = finish(cluster, gate)
    assert finished.step == epochs * STEPS_PER_EPOCH
    assert finished.samples == epochs * SAMPLES
    assert_exactly_once(cluster.reports(), epochs)
    elastic = torch.load(saved)
    assert elastic["state"] == {"passes": epochs}
    assert_same(elastic, reference(tmp_path, *arguments))
