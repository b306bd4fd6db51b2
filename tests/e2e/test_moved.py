"""A coordinator at a new address: it restarted on another port, never comes back, or has an IPv6 address."""

from __future__ import annotations

import socket
import subprocess
import sys

from pilot.protocol import connection
from pilot.rundir.rundir import RunDir
from tests.pools import LIMIT_S, TRAIN, Pool


def occupied(pool: Pool) -> socket.socket:
    """Another process listens on the pool's port."""
    return socket.create_server(connection.load(RunDir(pool.run_dir).connection).address)


def test_pilots_come_back_to_a_coordinator_whose_port_was_taken(pool: Pool) -> None:
    pool.up("--pilots", "1")
    by_hand = pool.agent()
    name = pool.submit(TRAIN, "--epochs", "2000", "--step-s", "0.02", options=pool.gains())
    before = pool.until_step(name, 20, nodes=2)
    was = connection.load(RunDir(pool.run_dir).connection)
    pool.kill_for_good()
    with occupied(pool):
        pool.up("--pilots", "1")
        now = connection.load(RunDir(pool.run_dir).connection)
        assert now.address != was.address
        assert (now.coordinator, now.certificate, now.token) == (was.coordinator, was.certificate, was.token)
        step = before.trainer(name).step
        after = pool.until(
            "both are back, and go on", lambda s: len(s.trainer(name).nodes) == 2 and s.trainer(name).step > step + 20
        )
        assert {node.node for node in after.pool} == {node.node for node in before.pool}
        assert (after.trainer(name).generation, after.trainer(name).lost_steps) == (before.trainer(name).generation, 0)
        assert by_hand.poll() is None
        pool.pilot("down")


LEAVES_SOON = """
from pilot.agent import runner
from pilot.cli.main import main
assert runner.JOIN_LIMIT_S == 120.0
runner.JOIN_LIMIT_S = 2.0
main()
"""


def test_a_pilot_that_starts_when_its_coordinator_is_gone_for_good_does_not_idle(pool: Pool) -> None:
    """As a job that waited in the queue for days. If the pool was drained, its connection file is gone as well."""
    pool.up()
    file = RunDir(pool.run_dir).connection
    pool.kill_for_good()
    command = [sys.executable, "-P", "-c", LEAVES_SOON, "agent", "--connection", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr.count("no coordinator answered at")) == (1, 1)
    pool.up()
    pool.pilot("down")
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr.count(f"no connection file {file}")) == (2, 1)


def test_pilots_reach_a_coordinator_by_ipv6(pool: Pool) -> None:
    pool.address = "::1"
    pool.up()
    assert connection.load(RunDir(pool.run_dir).connection).endpoint.startswith("tcp://[::1]:")
    pool.agent()
    pool.until_step(pool.submit(TRAIN, "--epochs", "2000", "--step-s", "0.02"), 3, nodes=1)
    pool.pilot("down")
