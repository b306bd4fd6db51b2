"""An interrupted drain leaves agents behind: what they still write belongs to their own trainer, not to a new one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import h5py
import psutil
import pytest

from pilot.checkpoint import store
from pilot.host import proc
from pilot.protocol.pool_client import PoolClient
from pilot.rundir.rundir import RunDir
from tests.e2e.proof import proved
from tests.integration.live_pool import until
from tests.pools import LIMIT_S, TRAIN, Pool


def cut_short(pool: Pool, how: str, agents: list[subprocess.Popen[bytes]]) -> None:
    """A drain that cannot end because the pilots are stopped, and is killed; the pilots then find no coordinator."""
    coordinator = pool.coordinator()
    assert coordinator is not None
    stopped = [process for agent in agents for process in proc.tree(agent.pid)]
    for process in stopped:
        process.suspend()
    if how == "killed":
        PoolClient(RunDir(pool.run_dir).connection, LIMIT_S).down()
        pool.kill_for_good()
    else:
        os.kill(coordinator, signal.SIGTERM)
        until(lambda: "the pool drains" in (pool.run_dir / "coordinator.log").read_text())
        os.kill(coordinator, signal.SIGTERM)
    until(lambda: pool.coordinator() is None)
    assert psutil.Process(agents[0].pid).status() == psutil.STATUS_STOPPED
    for process in reversed(stopped):
        process.resume()


def uids(folder: Path) -> set[str]:
    """Whose states the files in ``folder`` hold; "" if nobody's."""
    found = set()
    for path in folder.glob("*.h5"):
        with h5py.File(path, locking=False) as file:
            found.add(str(file.attrs.get("trainer_uid", "")))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "a second signal"])
def test_a_new_trainer_begins_at_step_0_whatever_an_earlier_one_of_its_name_left(pool: Pool, how: str) -> None:
    pool.orphan_s = 8.0
    pool.up()
    agents = [pool.agent() for _ in range(2)]
    work = (TRAIN, "--epochs", "2000", "--step-s", "0.02")
    assert pool.submit(*work, options=("--name", "t1", *pool.gains())) == "t1"
    before = pool.until_step("t1", 60, nodes=2).trainer("t1")
    old = (pool.run_dir / "trainers" / "t1").resolve()
    until(lambda: store.listing(old / "checkpoints"))
    cut_short(pool, how, agents)

    pool.up("--pilots", "0", "--fresh")
    assert pool.submit(*work, options=("--name", "t1", *pool.gains())) == "t1"
    after, new = pool.trainer("t1"), (pool.run_dir / "trainers" / "t1").resolve()
    assert len({before.uid, after.uid}) == 2
    assert (old.name, new.name) == (f"t1-{before.uid[:8]}", f"t1-{after.uid[:8]}")
    for agent in agents:
        agent.wait(LIMIT_S)
    assert list((new / "checkpoints").glob("*.h5")) == [], "it never had a node"
    assert pool.trainer("t1").step == 0

    pool.agent()
    pool.until_step("t1", 5, nodes=1)
    journal = (pool.run_dir / "journal.jsonl").read_text()
    assert re.findall(r'"type":"GroupFormed","trainer":"t1","generation":1,"step":(\d+)', journal) == ["0"]
    until(lambda: uids(new / "checkpoints"))
    assert (uids(new / "checkpoints"), uids(old / "checkpoints")) == ({after.uid}, {before.uid})
    pool.pilot("down")


def test_a_trainer_goes_on_after_a_drain_that_was_cut_short_beside_those_who_still_write_for_it(pool: Pool) -> None:
    pool.orphan_s = 8.0
    pool.up()
    agents = [pool.agent() for _ in range(2)]
    pool.submit_lasting(options=("--name", "t1"))
    before = pool.until_step("t1", 60, nodes=2).trainer("t1")
    cut_short(pool, "killed", agents)

    pool.up()
    pool.agent()
    pool.trains("t1", 1)
    assert pool.finish("t1").uid == before.uid
    proved(pool, "t1")
    pool.pilot("down")
