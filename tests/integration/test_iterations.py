"""Loops by iteration with real workers, real MPI and a real SIGKILL: the same result as one undisturbed process."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.integration.disturbed import same_as_alone

SCRIPT = Path(__file__).with_name("iterations.py")


@pytest.mark.parametrize("arguments", [(), ("--weights",)])
def test_nodes_come_and_one_dies(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with same_as_alone(tmp_path, SCRIPT, *arguments, paces=("--step-s", "0.03")) as run:
        cluster = run.cluster
        a, b, c = cluster.start(3)
        cluster.form([a, b])
        cluster.wait_step(3)
        cluster.wait_up(cluster.form([c, a, b], switch=True))
        cluster.wait_step(12)
        b.signal(signal.SIGSTOP)  # from now on the others wait for its gradients
        cluster.lose(b)
        cluster.wait_up(cluster.form([a, c]))
    assert run.finished.step == run.results()[0]["state"]["turns"] == 60
