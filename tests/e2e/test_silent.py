"""A node that stands still is noticed by those that wait for it, long before it counts as lost."""

from __future__ import annotations

from pilot.host import proc
from tests.e2e.proof import proved
from tests.pools import Pool


def test_the_others_go_on_without_a_node_that_stands_still_and_it_trains_again_afterwards(pool: Pool) -> None:
    pool.silent_s, pool.orphan_s = 500.0, 900.0
    pool.up()
    agents = [pool.agent() for _ in range(3)]
    name = pool.submit_lasting()
    pool.until_step(name, 20, nodes=3)
    processes = proc.tree(agents[1].pid)
    for process in processes:
        process.suspend()
    step = pool.trainer(name).step
    status = pool.until_step(name, step + 20, nodes=2)
    assert len(status.pool) == 3, "it is not lost"
    for process in processes:
        if process.is_running():
            process.resume()
    pool.until_step(name, pool.trainer(name).step + 20, nodes=3)
    trainer = pool.finish(name)
    assert (trainer.losses, trainer.lost_steps, trainer.worker_deaths) == (0, 0, 0)
    proved(pool, name)
