"""Real-life loops, with real workers, real MPI and real SIGKILLs: the same result as one undisturbed process."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.loops import SAMPLES
from tests.integration.plane import Plane, plane, run_alone
from tests.integration.test_data_plane import STEPS_PER_EPOCH, assert_exactly_once, finish

SCRIPT = Path(__file__).with_name("loops.py")
PACE = ("--step-s", "0.04", "--batch-s", "0.03")


def reference(folder: Path, *arguments: str) -> dict[str, Any]:
    (folder / "alone").mkdir()
    run_alone(folder, SCRIPT, *arguments, "--save", str(folder / "alone" / "saved"))
    result: dict[str, Any] = torch.load(folder / "alone" / "saved.0")
    return result


def assert_same(saved: Path, ranks: int, alone: dict[str, Any]) -> None:
    for rank in range(ranks):
        assert_as_alone(torch.load(saved.with_suffix(f".{rank}")), alone)


def assert_as_alone(result: dict[str, Any], alone: dict[str, Any]) -> None:
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
    epochs, gate, saved = 4, tmp_path / "gate", tmp_path / "saved"
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
    assert_same(saved, 3, reference(tmp_path, *arguments))


def test_a_stream_is_read_exactly_once_through_rescales_and_a_kill(tmp_path: Path) -> None:
    epochs, gate, saved = 6, tmp_path / "gate", tmp_path / "saved"
    arguments = ("--epochs", str(epochs), "--stream", "--micro-batch-size", "5")
    with plane(tmp_path, SCRIPT, *arguments, *PACE, "--save", str(saved), "--gate", str(gate)) as cluster:
        a, b, c = cluster.start(3)
        cluster.form([a, b])
        cluster.wait_step(3)
        cluster.wait_up(cluster.form([c, a, b], switch=True))
        cluster.wait_step(20)
        b.signal(signal.SIGSTOP)  # from now on the others wait for its gradients
        cluster.kill(b)
        cluster.dissolve()
        cluster.wait_up(cluster.form([a, c]))
        finished = finish(cluster, gate)
    assert finished.metrics["epoch_samples"] == SAMPLES
    assert_exactly_once(cluster.reports(), epochs)
    assert_same(saved, 2, reference(tmp_path, *arguments))


def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_on_all(tmp_path: Path) -> None:
    epochs, gate, saved = 3, tmp_path / "gate", tmp_path / "saved"
    arguments = ("--epochs", str(epochs), "--scaler", "--bad-step", "12")
    with plane(tmp_path, SCRIPT, *arguments, *PACE, "--save", str(saved), "--gate", str(gate)) as cluster:
        a, b, c = cluster.start(3)
        cluster.form([a, b])
        cluster.wait_step(13)
        cluster.wait_up(cluster.form([c, b], switch=True))  # the newcomer leads, with the scaler's state
        finished = finish(cluster, gate)
    assert finished.step == epochs * STEPS_PER_EPOCH
    assert_exactly_once(cluster.reports(), epochs)
    alone = reference(tmp_path, *arguments)
    assert alone["scale"]["scale"] < 2.0 ** (10 + finished.step // 7)
    assert_same(saved, 2, alone)


@pytest.mark.parametrize("how", ["--stop-after", "--break-after"])
def test_a_script_that_stops_early_has_finished(tmp_path: Path, how: str) -> None:
    saved = tmp_path / "saved"
    arguments = ("--epochs", "50", how, "1")
    with plane(tmp_path, SCRIPT, *arguments, "--save", str(saved)) as cluster:
        a, b = cluster.start(2)
        cluster.form([a, b])
        finished = cluster.wait_finished()
        cluster.stop()
    assert finished.step == 2 * STEPS_PER_EPOCH
    assert_exactly_once(cluster.reports(), 2)
    assert_same(saved, 2, reference(tmp_path, *arguments))
