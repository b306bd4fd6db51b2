"""A run directory on a disk that is full for a while: journal, ledger and logs wait or are cut, nothing ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pilot.core.errors import PilotError
from tests.chaos.disk import SmallDisk, unavailable
from tests.e2e.acts import crash, replayed
from tests.pools import TRAIN, Pool


@pytest.fixture
def disk(pool: Pool) -> Iterator[SmallDisk]:
    if reason := unavailable(pool.folder):
        pytest.skip(reason)
    made = SmallDisk(pool.run_dir)
    try:
        yield made
    finally:
        made.empty()
        pool.end()
        made.close()


def test_decisions_wait_trainers_train_on_and_it_goes_on_by_itself(pool: Pool, disk: SmallDisk) -> None:
    script = pool.folder / "talks.py"
    marked = TRAIN.read_text().replace("session.step(", "print('x' * 500) or session.step(")
    assert "print('x' * 500)" in marked
    script.write_text(marked)
    pool.up()
    pool.agent()
    name = pool.submit(script, "--epochs", "500", "--step-s", "0.03", options=pool.gains())
    pool.until_step(name, 20, nodes=1)
    disk.fill()
    pool.agent()
    pool.until("the trouble is shown", lambda status: "No space left on device" in status.trouble)
    full = pool.trainer(name)
    pool.until_step(name, full.step + 100, nodes=1)
    refused = pool.pilot("submit", script, check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (PilotError.exit_status, 1)
    assert "No space left on device" in refused.stderr
    assert [t.trainer for t in pool.status().trainers] == [name]
    disk.empty()
    pool.until("it goes on", lambda status: not status.trouble)
    later = pool.until_step(name, full.step + 101, nodes=2).trainer(name)
    assert (later.losses, later.lost_steps, later.worker_deaths) == (0, 0, 0)
    crash(pool)
    pool.until_step(name, later.step + 20, nodes=2)
    replayed(pool)
