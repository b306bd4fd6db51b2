"""Real-life loops, with real workers, real MPI and real SIGKILLs: the same result as one undisturbed process."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.integration.disturbed import SAMPLES, STEPS_PER_EPOCH, same_as_alone

SCRIPT = Path(__file__).with_name("loops.py")
PACES = ("--step-s", "0.04", "--batch-s", "0.03")


def test_ranks_die_and_come_in_the_middle_of_evaluations(tmp_path: Path) -> None:
    with same_as_alone(tmp_path, SCRIPT, "--every", "11", epochs=4, paces=PACES) as run:
        cluster = run.cluster

        def wait_evaluation(step: int) -> None:
            cluster.wait((tmp_path / f"evaluates-{step}").exists, f"the evaluation after step {step}")

        a, b, c, d = cluster.start(4)
        cluster.form([a, b])
        wait_evaluation(11)  # in the middle of an epoch
        cluster.lose(b)
        cluster.wait_up(cluster.form([a, c]))
        wait_evaluation(16)  # at an epoch's end
        cluster.lose(c)
        cluster.wait_up(cluster.form([d, a]))
        wait_evaluation(32)
        cluster.wait_up(cluster.form([a], switch=True))
        (e,) = cluster.start()
        cluster.wait_up(cluster.form([a, d, e], switch=True))


def test_a_stream_is_read_exactly_once_through_rescales_and_a_kill(tmp_path: Path) -> None:
    with same_as_alone(tmp_path, SCRIPT, "--stream", "--micro-batch-size", "5", epochs=6, paces=PACES) as run:
        cluster = run.cluster
        a, b, c = cluster.start(3)
        cluster.form([a, b])
        cluster.wait_step(3)
        cluster.wait_up(cluster.form([c, a, b], switch=True))
        cluster.wait_step(20)
        b.signal(signal.SIGSTOP)  # from now on the others wait for its gradients
        cluster.lose(b)
        cluster.wait_up(cluster.form([a, c]))
    assert run.finished.metrics["epoch_samples"] == SAMPLES


def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_on_all(tmp_path: Path) -> None:
    with same_as_alone(tmp_path, SCRIPT, "--scaler", "--bad-step", "12", epochs=3, paces=PACES) as run:
        cluster = run.cluster
        a, b, c = cluster.start(3)
        cluster.form([a, b])
        cluster.wait_step(13)
        cluster.wait_up(cluster.form([c, b], switch=True))  # the newcomer leads, with the scaler's state
    assert run.finished.step == 3 * STEPS_PER_EPOCH
    assert run.results()[0]["scale"]["scale"] < 2.0 ** (10 + run.finished.step // 7)


@pytest.mark.parametrize("how", ["--stop-after", "--break-after"])
def test_a_script_that_stops_early_has_finished(tmp_path: Path, how: str) -> None:
    with same_as_alone(tmp_path, SCRIPT, how, "1", epochs=50, trained=2, paces=()) as run:
        run.cluster.form(run.cluster.start(2))
    assert run.finished.step == 2 * STEPS_PER_EPOCH
