"""A coordinator that crashes is restarted, and its pilots stay; one that is told to end stays down."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

import psutil

from tests.e2e.acts import crash
from tests.pools import LIMIT_S, TRAIN, Pool

IN_THE_COORDINATOR = """
import sys, time
from pathlib import Path
if sys.argv[0].endswith("daemon.py"):
    {what}
"""


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_killed_coordinator_comes_back_and_its_pilots_stay(pool: Pool) -> None:
    pool.up()
    agent = pool.agent()
    name = pool.submit(TRAIN, "--epochs", "500", "--step-s", "0.03")
    before = pool.until_step(name, 20, nodes=1).trainer(name)
    (supervisor,) = pool.supervisor()
    followed = [["wait", name], ["logs", "-f", name], ["events", "-f"]]
    followers = [
        subprocess.Popen(pool.command(*words), env=pool.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for words in followed
    ]
    waiting = psutil.Process(followers[0].pid)
    pool.until("the first one waits", lambda _: bool(waiting.net_connections()))
    pool.status()  # a later request is answered, so the first one has arrived
    for _ in range(2):
        killed = pool.coordinator()
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        assert pool.pilot("status").returncode == 0, "a command that comes meanwhile waits"
        pool.back_from(killed)
    status = pool.until_step(name, pool.trainer(name).step + 20, nodes=1)
    after = status.trainer(name)
    assert (after.generation, after.losses, after.lost_steps) == (before.generation, 0, 0)
    assert agent.poll() is None
    assert any("was restarted" in remark for remark in status.remarks)
    ended = [follower.communicate()[0] for follower in followers if follower.poll() is not None]
    assert ended == []
    pool.pilot("cancel", name)
    pool.pilot("down")
    output = [follower.communicate(timeout=LIMIT_S)[0].decode() for follower in followers]
    assert [follower.returncode for follower in followers] == [1, 0, 0], output
    assert (output[0].splitlines()[-1], "cancelled by the user" in output[2]) == (f"{name} cancelled", True)
    psutil.wait_procs([supervisor], LIMIT_S)
    assert pool.supervisor() == []
    assert pool.coordinator() is None


def test_one_that_is_killed_while_it_drains_begins_no_new_pool(pool: Pool) -> None:
    pool.up()
    agent = pool.agent()
    pool.until("a node is there", lambda status: len(status.pool) == 1)
    supervised, killed = pool.supervisor(), pool.coordinator()
    assert killed is not None
    agent.send_signal(signal.SIGSTOP)
    os.kill(killed, signal.SIGTERM)
    pool.until("it drains", lambda status: status.draining)
    os.kill(killed, signal.SIGKILL)
    agent.send_signal(signal.SIGCONT)
    psutil.wait_procs(supervised, LIMIT_S)
    assert pool.supervisor() == []
    assert pool.coordinator() is None
    assert "was shut down" in (pool.run_dir / "coordinator.log").read_text()


def test_a_coordinator_is_restarted_also_if_pilot_up_was_killed_before_it_answered(pool: Pool) -> None:
    site, go = pool.folder / "e2e.py", pool.folder / "go"
    site.write_text(
        pool.site() + IN_THE_COORDINATOR.format(what=f"while not Path({str(go)!r}).exists(): time.sleep(0.1)")
    )
    command = pool.command("up", "--site", str(site), "--pilots", "0")
    with subprocess.Popen(command, env=pool.environment(), stdout=subprocess.DEVNULL) as starting:
        wait_for(pool.supervisor)
        starting.kill()
    go.touch()
    wait_for(lambda: pool.coordinator() is not None and (pool.run_dir / "journal.jsonl").exists())
    crash(pool)


def test_where_it_cannot_start_nobody_tries_again(pool: Pool) -> None:
    site = pool.folder / "e2e.py"
    site.write_text(pool.site() + IN_THE_COORDINATOR.format(what="raise OSError('not here')"))
    assert "OSError: not here" in pool.pilot("up", "--site", site, check=False).stderr
    wait_for(lambda: not pool.supervisor())
