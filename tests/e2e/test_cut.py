"""A pilot whose network is cut: its group continues without it, and it stops stepping before it is replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.chaos.network import Lan, unavailable
from tests.e2e.proof import proved
from tests.pools import LIMIT_S, Pool


@pytest.fixture
def lan(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lan]:
    """A network of namespaces, which the ranks also use."""
    if reason := unavailable():
        pytest.skip(reason)
    monkeypatch.setenv("MPIR_CVAR_NOLOCAL", "1")
    made = Lan()
    yield made
    made.close()


def log_of(pool: Pool, number: int) -> str:
    return (pool.folder / f"agent{number}.log").read_text()


def test_the_others_go_on_and_the_one_that_is_cut_off_leaves_by_itself(lan: Lan, pool: Pool) -> None:
    pool.address, pool.orphan_s = lan.address, 10.0
    pool.up()
    agents = [pool.agent(*lan.port(number)) for number in (1, 2)]
    name = pool.submit_lasting()
    pool.until_step(name, 20, nodes=2)
    before = log_of(pool, 1)  # it may have begun alone
    lan.cut(2)
    step = pool.until("it is silent", lambda s: len(s.pool) == 1).trainers[0].step
    pool.until_step(name, step + 20, nodes=1)
    assert agents[1].wait(LIMIT_S) == 0
    assert "left: no coordinator for" in log_of(pool, 1)
    assert "node 0 of 1" not in log_of(pool, 1).removeprefix(before), "it never regroups by itself"
    assert pool.finish(name).lost_steps == 0
    proved(pool, name)


def test_who_alone_holds_the_state_has_stopped_and_written_it_before_it_is_replaced(lan: Lan, pool: Pool) -> None:
    pool.address, pool.orphan_s = lan.address, 10.0
    pool.up()
    agent = pool.agent(*lan.port(1))
    name = pool.submit_lasting(options=("--max-nodes", "1"))
    pool.until_step(name, 20, nodes=1)
    lan.cut(1)
    step = pool.trainer(name).step
    pool.agent(*lan.port(2))
    assert agent.wait(LIMIT_S) == 0
    pool.trains(name, 1)
    trainer = pool.finish(name)
    assert (trainer.lost_steps, trainer.losses) == (0, 1)
    assert resumed(pool, name) > step, "from what it wrote while it was cut off"
    proved(pool, name)


def test_two_that_cannot_reach_each_other_do_not_train_together_and_the_rest_goes_on(lan: Lan, pool: Pool) -> None:
    pool.address = lan.address
    pool.up()
    for number in (1, 2, 3):
        pool.agent(*lan.port(number))
    name = pool.submit_lasting(options=("--min-nodes", "2"))
    pool.until_step(name, 20, nodes=3)
    lan.lose(1, 3)
    aside = pool.until("one of them is set aside", lambda s: any("set aside" in r for r in s.trainer(name).remarks))
    assert "cannot reach" in str(aside.trainer(name).remarks)
    pool.until_step(name, aside.trainer(name).step + 20, nodes=2)
    assert pool.finish(name).lost_steps == 0
    proved(pool, name)


def resumed(pool: Pool, name: str) -> int:
    """The step of the checkpoint that generation 2 started from."""
    journal = (pool.run_dir / "journal.jsonl").read_text()
    (step,) = re.findall(rf'"type":"GroupFormed","trainer":"{name}","generation":2,"step":\d+,"resumed":(\d+)', journal)
    return int(step)
