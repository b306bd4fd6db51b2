"""What people's loops do, with real workers, real MPI and real SIGKILLs: as if one process had done it undisturbed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.plane import Plane, plane, run_alone
from tests.integration.test_data_plane import assert_exactly_once, finish

SCRIPT = Path(__file__).with_name("loops.py")
PACE = ("--step-s", "0.04", "--batch-s", "0.03")


def reference(folder: Path, *arguments: str) -> dict[str, Any]:
    path = folder / "alone" / "saved.pt"
    path.parent.mkdir()
    run_alone(folder, SCRIPT, *arguments, "--save", str(path))
    result: dict[str, Any] = torch.load(path)
    return result


def assert_same(saved: Path, alone: dict[str, Any]) -> None:
    result = torch.load(saved)
    for name, tensor in result["model"].items():
        torch.testing.assert_close(tensor, alone["model"][name], rtol=1e-12, atol=1e-15)
    assert result["lr"] == alone["lr"]
    assert result["scale"] == alone["scale"]
    assert result["state"].get("passes") == alone["state"].get("passes")
    history, expected = result["state"]["history"], alone["state"]["history"]
    assert [row[0] for row in history] == [row[0] for row in expected]
    assert history == [pytest.approx(row, rel=1e-12) for row in expected]


def wait_evaluation(cluster: Plane, folder: Path, step: int) -> None:
    cluster.wait((folder / f"evaluates-{step}").exists, f"the evaluation after step {step}")


def test_ranks_die_and_come_in_the_middle_of_evaluations(tmp_path: Path) -> None:
    epochs, gate, saved = 4, tmp_path / "gate", tmp_path / "elastic.pt"
    arguments = ("--epochs", str(epochs), "--every", "11")
    with plane(tmp_path, SCRIPT, *arguments, *PACE, "--save", str(saved), "--gate", str(gate)) as cluster:
        a, b, c, d = cluster.start(4)
        cluster.form([a, b])
        wait_evaluation(cluster, tmp_path, 11)  # in the middle of an epoch
        cluster.kill(b)
        cluster.dissolve()
        cluster.wait_up(cluster.form([a, c]))
        wait_evaluation(cluster, tmp_path, 16)  # at an epoch's end
        cluster.kill(c)
        cluster.dissolve()
        cluster.wait_up(cluster.form([d, a]))
        wait_evaluation(cluster, tmp_path, 32)
        cluster.wait_up(cluster.form([a], switch=True))
        (e,) = cluster.start()
        cluster.wait_up(cluster.form([a, d, e], switch=True))
        finish(cluster, gate)
    assert_exactly_once(cluster.reports(), epochs)
    assert_same(saved, reference(tmp_path, *arguments))
