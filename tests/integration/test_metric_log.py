"""``session.log_to``: one TensorBoard run through all changes of a group, and after a kill of all of it."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pilot.protocol import wire
from tests.integration.plane import plane
from tests.integration.test_data_plane import BATCH, SCRIPT, STEPS_PER_EPOCH, finish


def steps_logged(folder: Path, tag: str) -> list[int]:
    """The points as TensorBoard shows them."""
    run = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    run.Reload()
    return [point.step for point in run.Scalars(tag)]


def test_each_step_is_logged_once_whoever_leads_and_dies(tmp_path: Path) -> None:
    epochs, gate, log = 12, tmp_path / "gate", tmp_path / "log"
    arguments = ("--epochs", str(epochs), *BATCH, "--save", str(tmp_path / "saved.pt"), "--log-to", str(log))
    with plane(tmp_path, SCRIPT, *arguments, "--step-s", "0.02", "--gate", str(gate), interval_s=0.3) as cluster:
        a, b, c = cluster.start(3)
        cluster.wait_up(cluster.form([a, b]))
        cluster.wait_step(3)
        up = cluster.wait_up(cluster.form([c, b, a], switch=True))  # a newcomer leads
        cluster.wait_step(up.step + 2)
        cluster.kill(c)
        cluster.dissolve()
        up = cluster.wait_up(cluster.form([b, a]))
        cluster.wait_step(up.step + 2)
        cluster.wait(lambda: len(b.heard(wire.CheckpointWritten)) >= 1, "a checkpoint")
        cluster.kill(a)
        cluster.kill(b)
        (d,) = cluster.start()
        assert cluster.wait_up(cluster.form([d])).resumed
        finish(cluster, gate)
    assert steps_logged(log, "loss") == list(range(1, epochs * STEPS_PER_EPOCH + 1))
    assert steps_logged(log, "passes") == [STEPS_PER_EPOCH * epoch for epoch in range(1, epochs + 1)]
