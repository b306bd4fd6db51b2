"""A pool and a trainer end cleanly when their budgets are used up."""

from __future__ import annotations

import time

import pytest

from tests.pools import LIMIT_S, TRAIN, Pool

BUDGET_NODE_HOURS = 0.05
"""Three minutes of one pilot: the whole course is seen before it ends, even if starting takes long. More pilots then
end it.
"""

LONG = ("--epochs", "500", "--step-s", "0.02")


@pytest.mark.slow
def test_a_trainer_stops_at_its_budget_and_a_pool_drains_at_its_own(pool: Pool) -> None:
    pool.up("--pilots", "1", "--budget", str(BUDGET_NODE_HOURS))
    pool.submit(TRAIN, *LONG, options=("--name", "small", "--budget", "0.003"))
    assert pool.pilot("wait", "small", check=False).returncode == 1
    small = pool.trainer("small")
    assert (small.phase, small.reason) == ("stopped", "its budget of 0.003 node-hours is used up")
    assert 0.003 <= small.node_seconds / 3600 < 0.01  # to save and stop takes a busy machine many seconds
    assert any("80% of its budget" in remark for remark in small.remarks)
    refused = pool.pilot("resume", "small", check=False)
    assert (refused.returncode, "--budget" in refused.stderr) == (2, True)
    pool.pilot("resume", "small", "--budget", "1")
    pool.until_step("small", small.step, nodes=1)
    assert "of the budget of" in pool.pilot("status").stdout
    pool.pilot("scale", "4")
    deadline = time.monotonic() + LIMIT_S
    while pool.coordinator() is not None:
        assert time.monotonic() < deadline, "its budget does not end it"
        time.sleep(0.1)
    past = pool.status()
    assert (past.up, past.trainer("small").phase) == (False, "queued")
    assert BUDGET_NODE_HOURS <= past.used_node_hours < 1.5 * BUDGET_NODE_HOURS
    assert f"budget of {BUDGET_NODE_HOURS} node-hours is used up" in pool.pilot("events").stdout
    assert past.trainer("small").step > small.step
