"""``session.log_to``: one TensorBoard run through all changes of a group, and after a kill of all of it."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pilot.protocol import wire
from tests.integration import disturbed
from tests.integration.disturbed import BATCH, STEPS_PER_EPOCH

SCRIPT = Path(__file__).with_name("script.py")


def steps_logged(folder: Path, tag: str) -> list[int]:
    """The points as TensorBoard shows them."""
    run = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    run.Reload()
    return [point.step for point in run.Scalars(tag)]


def test_each_step_is_logged_once_whoever_leads_and_dies(tmp_path: Path) -> None:
    epochs, log, paces = 12, tmp_path / "log", ("--step-s", "0.02")
    with disturbed.run(
        tmp_path,
        SCRIPT,
        *BATCH,
        "--log-to",
        str(log),
        "--epochs",
        str(epochs),
        trained=epochs,
        paces=paces,
        interval_s=0.3,
    ) as run:
        cluster = run.cluster
        a, b, c = cluster.start(3)
        cluster.wait_up(cluster.form([a, b]))
        cluster.wait_step(3)
        up = cluster.wait_up(cluster.form([c, b, a], switch=True))  # a newcomer leads
        cluster.wait_step(up.step + 2)
        cluster.lose(c)
        up = cluster.wait_up(cluster.form([b, a]))
        cluster.wait_step(up.step + 2)
        cluster.wait(lambda: len(b.heard(wire.CheckpointWritten)) >= 1, "a checkpoint")
        cluster.kill(a)
        cluster.kill(b)
        assert cluster.wait_up(cluster.form(cluster.start())).resumed
    assert steps_logged(log, "loss") == list(range(1, epochs * STEPS_PER_EPOCH + 1))
    assert steps_logged(log, "passes") == [STEPS_PER_EPOCH * epoch for epoch in range(1, epochs + 1)]
