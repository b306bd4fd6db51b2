"""Loops by iteration with real workers, real MPI and a real SIGKILL: the same result as one undisturbed process."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.plane import plane, run_alone
from tests.integration.test_data_plane import finish

SCRIPT = Path(__file__).with_name("iterations.py")


@pytest.mark.parametrize("arguments", [(), ("--weights",)])
def test_nodes_come_and_one_dies(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    gate, saved = tmp_path / "gate", tmp_path / "saved"
    with plane(tmp_path, SCRIPT, *arguments, "--step-s", "0.03", "--save", str(saved), "--gate", str(gate)) as cluster:
        a, b, c = cluster.start(3)
        cluster.form([a, b])
        cluster.wait_step(3)
        cluster.wait_up(cluster.form([c, a, b], switch=True))
        cluster.wait_step(12)
        b.signal(signal.SIGSTOP)  # from now on the others wait for its gradients
        cluster.kill(b)
        cluster.dissolve()
        cluster.wait_up(cluster.form([a, c]))
        assert finish(cluster, gate).step == 60
    (tmp_path / "alone").mkdir()
    run_alone(tmp_path, SCRIPT, *arguments, "--save", str(tmp_path / "alone" / "saved"))
    alone: dict[str, Any] = torch.load(tmp_path / "alone" / "saved.0")
    first, second = (torch.load(saved.with_suffix(f".{rank}")) for rank in range(2))
    for name, tensor in alone["model"].items():
        assert torch.equal(first["model"][name], second["model"][name])
        torch.testing.assert_close(first["model"][name], tensor, rtol=1e-12, atol=1e-15)
    for result in (first, second):
        assert result["state"]["turns"] == alone["state"]["turns"] == 60
        assert result["state"]["seen"] == pytest.approx(alone["state"]["seen"], rel=1e-12)
