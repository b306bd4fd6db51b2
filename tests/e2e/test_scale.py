"""``pilot scale`` on a pool that is up."""

from __future__ import annotations

import pytest

from tests.e2e.acts import crash
from tests.pools import Pool


@pytest.mark.slow
def test_a_pool_is_scaled_down_and_up_and_stays_so_when_its_coordinator_crashes(pool: Pool) -> None:
    pool.up("--pilots", "2")
    name = pool.submit_elastic(max_nodes=2, epochs=200)
    pool.until_step(name, 10, nodes=2)
    refused = pool.pilot("up", "--site", pool.folder / "e2e.py", "--pilots", "1", check=False)
    assert (refused.returncode, "pilot scale" in refused.stderr) == (2, True)
    assert pool.pilot("scale", "1").stdout == "keeping 1 pilot; the pool has 2 nodes now\n"
    pool.until_step(name, 20, nodes=1)
    crash(pool)
    pool.trains(name, 1)
    assert pool.status().keeper.wanted_nodes == 1
    pool.pilot("scale", "2")
    pool.trains(name, 2)
    trainer = pool.trainer(name)
    assert (trainer.lost_steps, trainer.losses) == (0, 0)
    assert pool.pilot("scale", "many", check=False).returncode == 2
    pool.pilot("cancel", name)
    pool.pilot("down")
