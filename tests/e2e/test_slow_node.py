"""A node on which everything takes longer is named."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from pilot.protocol.node_names import shortened
from pilot.protocol.pool_client import PoolClient
from tests.e2e.acts import script
from tests.pools import Pool

SAYS = re.compile("counts as slow: it did [0-9]+% of what other")

BUSY = """
until_s = time.process_time() + 0.03
while time.process_time() < until_s:
    pass
"""


@contextmanager
def throttled(process: psutil.Process) -> Iterator[None]:
    """It runs for a quarter of the time."""
    over = threading.Event()

    def throttle() -> None:
        while not over.is_set():
            process.suspend()
            over.wait(0.15)
            process.resume()
            over.wait(0.05)

    thread = threading.Thread(target=throttle)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_node_that_is_given_little_time_is_named(pool: Pool) -> None:
    pool.silent_s, pool.orphan_s = 60.0, 120.0  # a process that is often stopped is not stuck
    pool.up()
    for _ in range(2):
        pool.agent()
    name = pool.submit(script(pool, BUSY, samples=3200), options=pool.gains())
    pool.until_step(name, 10, nodes=2)
    agent = pool.agents[1]
    (victim,) = pool.workers(agent)
    with throttled(victim):
        told = pool.until("a slow node is reported", lambda s: any(map(SAYS.search, s.warnings)), limit_s=400.0)
    (remark,) = filter(SAYS.search, told.warnings)
    (node,) = [
        pilot.node
        for pilot in PoolClient(pool.run_dir / "connection.json", 60.0).pilots().pilots
        if pilot.pid == agent.pid
    ]
    assert remark.startswith(f"{node} counts as slow: ")
    assert remark.endswith(f" nodes do for {name}")
    assert f"{shortened(node)} counts as slow" in pool.pilot("nodes").stdout
    pool.pilot("cancel", name)
