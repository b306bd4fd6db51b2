"""Porting takes a few lines, and the elastic versions train through a kill."""

from __future__ import annotations

import pytest

from tests.pools import Pool
from tests.ported.pairs import FOLDER, PAIRS, README, Pair, rewritten

MOST_LINES = 12
SHORT = ("vae", "lstm_lm", "mingpt")
"""Trained by ``make test``: a loss that was fixed, state carried along the text, a loop by iteration."""


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_script_is_ported_by_a_few_lines(pair: Pair) -> None:
    assert 3 <= len(pair.written()) <= MOST_LINES


def test_every_script_is_listed_with_its_lines() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == {f"{p.name}{end}.py" for p in PAIRS for end in ("", "_plain")}
    assert README.read_text() == rewritten(README.read_text()), "python -m tests.ported.pairs"


def trains_through_a_kill(pool: Pool, pair: Pair) -> None:
    """Its process on the second node is killed; it trains on, and then on both again. Then it is cancelled."""
    endless = ("--max-iters" if pair.by_iteration else "--epochs", "100000")
    options = ("--name", pair.name, "--max-nodes", "2", *pool.gains())
    name = pool.submit(pair.elastic, *endless, options=options)
    pool.until_step(name, 5, nodes=2)
    (victim,) = pool.workers(pool.agents[1])
    victim.kill()
    pool.until("it is missed", lambda s: s.trainer(name).worker_deaths == 1)
    pool.until_step(name, pool.trainer(name).step + 5, nodes=2)
    assert pool.trainer(name).lost_steps == 0
    pool.pilot("cancel", name)
    pool.until("its nodes are free", lambda s: s.trainer(name).phase == "cancelled")


def in_one_pool(pool: Pool, names: tuple[str, ...]) -> None:
    pool.up()
    for _ in range(2):
        pool.agent()
    for pair in PAIRS:
        if pair.name in names:
            trains_through_a_kill(pool, pair)


def test_some_train_through_a_kill(pool: Pool) -> None:
    in_one_pool(pool, SHORT)


@pytest.mark.long
def test_the_others_train_through_a_kill(pool: Pool) -> None:
    in_one_pool(pool, tuple(pair.name for pair in PAIRS if pair.name not in (*SHORT, "lbfgs")))


def test_what_cannot_be_ported_is_refused_when_its_session_is_made(pool: Pool) -> None:
    pool.up()
    pool.agent()
    name = pool.submit(FOLDER / "lbfgs.py")
    failed = pool.until("it is refused", lambda s: s.trainer(name).phase == "failed").trainer(name)
    assert "LBFGS.step needs a closure" in failed.reason
