"""A node on which everything takes longer is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from pilot.protocol.pool_client import PoolClient
from tests.pools import Pool

SCRIPT = """
import time
import torch
from torch.utils.data import TensorDataset
import pilot.train

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
session = pilot.train.session(model, optimizer)
loader = session.loader(TensorDataset(torch.ones(3200, 4)), global_batch_size=16)
for _ in session.epochs(100_000):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        until_s = time.process_time() + 0.03
        while time.process_time() < until_s:
            pass
        session.step(loss)
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


def test_a_node_that_is_given_little_time_is_told_and_named(pool: Pool) -> None:
    pool.orphan_s = 120.0
    site = pool.folder / "e2e.py"
    site.write_text(pool.site().replace("silent_s=4", "silent_s=60"))  # a process that is often stopped is not stuck
    pool.pilot("up", "--site", site, "--pilots", "0")
    for _ in range(2):
        pool.agent()
    script = pool.folder / "train.py"
    script.write_text(SCRIPT)
    name = pool.submit(script, options=pool.gains())
    pool.until_step(name, 10, nodes=2)
    agent = pool.agents[1]
    (victim,) = pool.workers(agent)
    with throttled(victim):
        status = pool.until("a slow node is told", lambda s: any("times as long" in one for one in s.remarks))
    (told,) = [remark for remark in status.remarks if "times as long" in remark]
    (node,) = [
        pilot.node
        for pilot in PoolClient(pool.run_dir / "connection.json", 60.0).pilots().pilots
        if pilot.pid == agent.pid
    ]
    assert told.startswith(f"{node} takes ")
    assert told.endswith(f" times as long per sample as the other node of {name}, which waits for it")
    assert f"{node} takes " in pool.pilot("nodes").stdout
    pool.pilot("cancel", name)
