"""A killed pool whose connection file or key is lost continues: its journal and its checkpoints are whole."""

from __future__ import annotations

import pytest

from pilot.rundir.rundir import RunDir
from tests.e2e.acts import training
from tests.pools import LIMIT_S, Pool


@pytest.mark.parametrize("lost", ["connection.json", "server.key"])
def test_trainers_continue_and_pilots_that_cannot_come_back_save_and_leave(pool: Pool, lost: str) -> None:
    name = training(pool, 1)
    before, agent = pool.status(), pool.agents[0]
    pool.kill_for_good()
    (pool.run_dir / lost).write_bytes(b"")
    if lost == "connection.json":
        (pool.run_dir / lost).unlink()
        assert "is down" in pool.pilot("status").stdout, "its journal can be read"
    pool.up()
    assert agent.wait(LIMIT_S) == 0, "it has left"
    pool.agent()
    after = pool.until_step(name, before.trainer(name).step + 20, nodes=1)
    assert after.coordinator == before.coordinator
    assert any("cannot come back" in remark and lost in remark for remark in after.remarks)
    assert RunDir(pool.run_dir).server_key.stat().st_mode & 0o777 == 0o600
    pool.finish(name)
    pool.pilot("down")
