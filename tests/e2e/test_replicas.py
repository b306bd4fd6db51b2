"""A model that is divided over two nodes, in a real pool: what comes and goes are replicas of two nodes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from pilot.agent.agent_state import STOP_LIMIT_S
from pilot.core.events import PoolChanged, WorkerExited
from pilot.host import proc
from tests.e2e.acts import replayed
from tests.e2e.proof import proved
from tests.e2e.test_ranks_per_node import alone
from tests.pools import LIMIT_S, Pool

OPTIONS = ("--between-nodes", "gloo", "--nodes-per-replica", "2", "--max-nodes", "4")


def as_alone(pool: Pool, name: str, saved: Path) -> None:
    """Each sample was used once per epoch, and the parameters are those that one process computes."""
    epochs = proved(pool, name)
    elastic = torch.load(saved)
    for parameter, values in alone(pool.folder / "alone.pt", epochs).items():
        torch.testing.assert_close(elastic[parameter], values, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_node_takes_its_replica_which_is_made_anew_with_a_spare_one(ranks: int, pool: Pool) -> None:
    saved = pool.folder / "elastic.pt"
    pool.ranks = ranks
    pool.up()
    agents = [pool.agent() for _ in range(4)]
    name = pool.submit_lasting("--sharded", "--save", str(saved), options=OPTIONS)
    pool.until_step(name, 20, nodes=4)

    pool.kill_tree(agents[1])
    pool.until("the pilot is lost", lambda s: len(s.pool) == 3)
    pool.until_step(name, pool.trainer(name).step + 20, nodes=2)
    agents.append(pool.agent())
    pool.until_step(name, pool.trainer(name).step + 20, nodes=4)

    agents[-1].send_signal(signal.SIGTERM)
    assert agents[-1].wait(LIMIT_S) == 0
    pool.until_step(name, pool.trainer(name).step + 20, nodes=2)
    trainer = pool.finish(name)
    assert (trainer.worker_deaths, trainer.losses, trainer.lost_steps) == (0, 1, 0)
    as_alone(pool, name, saved)


@pytest.mark.slow
def test_the_mate_of_a_node_that_stands_still_is_killed_and_soon_in_a_new_replica(pool: Pool) -> None:
    pool.up()
    agents = [pool.agent() for _ in range(4)]
    name = pool.submit_lasting("--sharded", options=OPTIONS)
    pool.until_step(name, 20, nodes=4)
    pool.agent()
    pool.until_pilots(5)
    for process in proc.tree(agents[3].pid):
        process.send_signal(signal.SIGSTOP)
    pool.until("the pilot is lost", lambda s: len(s.pool) == 4)
    pool.until_step(name, pool.trainer(name).step + 20, nodes=4)
    pool.kill_tree(agents[3])

    decisions = list(replayed(pool).decisions)
    (lost_s,) = (d.now_s for d in decisions if isinstance(d.event, PoolChanged) and d.event.lost)
    (ended_s,) = (d.now_s for d in decisions if isinstance(d.event, WorkerExited))
    assert ended_s - lost_s < STOP_LIMIT_S, "it hung in a collective until it was killed as one that does not end"
    pool.pilot("cancel", name)


@pytest.mark.slow
def test_when_both_replicas_have_lost_a_node_the_next_ones_resume_from_the_checkpoint(pool: Pool) -> None:
    saved = pool.folder / "elastic.pt"
    pool.up()
    agents = [pool.agent() for _ in range(2)]
    name = pool.submit_lasting("--sharded", "--save", str(saved), options=OPTIONS)
    pool.until_step(name, 20, nodes=2)
    for agent in agents:
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(LIMIT_S) == 0
    pool.until("the pool is empty", lambda s: not s.pool)
    step = pool.trainer(name).step
    agents = [pool.agent() for _ in range(2)]
    pool.until_step(name, step + 20, nodes=2)
    trainer = pool.finish(name)
    assert (trainer.lost_steps, trainer.redone_steps) == (0, 0)
    as_alone(pool, name, saved)
