"""A GAN with real workers and real MPI: its ranks die in each phase of a step, and nodes come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.plane import plane, run_alone
from tests.integration.test_data_plane import assert_exactly_once, finish

SCRIPT = Path(__file__).with_name("gan.py")
EPOCHS = 6


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("alone")
    run_alone(folder, SCRIPT, "--epochs", str(EPOCHS), "--save", str(folder / "saved"))
    result: dict[str, Any] = torch.load(folder / "saved.0")
    return result


def assert_same(saved: Path, ranks: int, alone: dict[str, Any]) -> None:
    for rank in range(ranks):
        result = torch.load(saved.with_suffix(f".{rank}"))
        for name, part in alone.items():
            torch.testing.assert_close(result[name], part, rtol=1e-10, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def test_ranks_die_in_each_phase_and_newcomers_get_all(tmp_path: Path, alone: dict[str, Any]) -> None:
    gate, saved = tmp_path / "gate", tmp_path / "saved"
    arguments = ["--epochs", str(EPOCHS), "--stops", "5:critic", "--stops", "22:generator"]
    with plane(tmp_path, SCRIPT, *arguments, "--step-s", "0.04", "--save", str(saved), "--gate", str(gate)) as cluster:
        a, b, c, d, e = cluster.start(5)
        cluster.form([a, b])
        cluster.wait((tmp_path / "5:critic").exists, "the first stop")
        cluster.kill(b)
        cluster.dissolve()
        cluster.wait_up(cluster.form([c, a]))  # in the first epoch, before anything is unfrozen
        cluster.wait((tmp_path / "22:generator").exists, "the second stop")
        cluster.kill(a)
        cluster.dissolve()
        cluster.wait_up(cluster.form([c, d]))  # in the second
        cluster.wait_step(35)
        cluster.wait_up(cluster.form([e, c, d], switch=True))  # in a later one: it never unfreezes anything
        finish(cluster, gate)
    assert_exactly_once(cluster.reports(), EPOCHS)
    assert_same(saved, 3, alone)
