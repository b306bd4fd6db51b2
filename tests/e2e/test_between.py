"""Nodes whose training processes sum with one another, in a real pool: one dies, another takes its place."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil
import pytest
import torch

from tests.e2e.proof import proved
from tests.e2e.test_ranks_per_node import alone
from tests.pools import Pool


def connected(process: psutil.Process) -> bool:
    """Return whether the process has a TCP connection, as no training process has that leaves sums to MPI."""
    return any(one.family == socket.AF_INET and one.raddr for one in process.net_connections("tcp"))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_nodes_that_sum_with_gloo_train_on_when_one_is_killed(ranks: int, pool: Pool) -> None:
    saved: Path = pool.folder / "elastic.pt"
    pool.ranks = ranks
    pool.up()
    first, second = pool.agent(), pool.agent()
    options = ("--between-nodes", "gloo", "--max-nodes", "2")
    name = pool.submit_lasting("--save", str(saved), options=options)
    pool.until_step(name, 20, nodes=2)
    assert all(connected(process) for agent in (first, second) for process in pool.workers(agent))

    pool.kill_tree(first)
    pool.until("the pilot is lost", lambda s: len(s.pool) == 1)
    third = pool.agent()
    pool.until_step(name, pool.trainer(name).step + 20, nodes=2)
    assert all(connected(process) for agent in (second, third) for process in pool.workers(agent))

    trainer = pool.finish(name)
    assert (trainer.worker_deaths, trainer.losses, trainer.lost_steps) == (0, 1, 0)
    epochs = proved(pool, name)
    elastic = torch.load(saved)
    for parameter, values in alone(pool.folder / "alone.pt", epochs).items():
        torch.testing.assert_close(elastic[parameter], values, rtol=1e-9, atol=1e-12)
