"""What `make test` runs of real pools: one whose node is killed, and the demo."""

from __future__ import annotations

from tests.e2e.acts import training
from tests.e2e.proof import DEMO_LIMIT_S, proved
from tests.pools import Pool


def test_one_of_three_is_killed_and_the_survivors_go_on(pool: Pool) -> None:
    name = training(pool, 3)
    pool.kill_tree(pool.agents[1])
    pool.until_step(name, 40, nodes=2)
    trainer = pool.finish(name)
    assert (trainer.losses, trainer.lost_steps) == (1, 0)
    proved(pool, name)


def test_the_demo_passes(pool: Pool) -> None:
    done = pool.pilot("demo", "--json", "--output", pool.folder / "demo", check=False, limit_s=DEMO_LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (pool.folder / "demo" / "report.html").read_text().startswith("<!doctype html>")
