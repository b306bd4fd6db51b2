"""A trainer on one node that is preempted with notice, whose pool is taken down, and whose node dies, trains
to the last bit what it trains undisturbed.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from tests.pools import LIMIT_S, Pool

SCRIPT = Path(__file__).with_name("exact.py")


def trained(pool: Pool, name: str) -> dict[str, torch.Tensor]:
    assert pool.pilot("wait", name).stdout == f"{name} finished\n"
    found: dict[str, torch.Tensor] = torch.load(pool.folder / name)
    return found


def submit(pool: Pool, name: str, step_s: float, *more: str) -> None:
    pool.submit(SCRIPT, "--step-s", str(step_s), "--save", str(pool.folder / name), *more, options=("--name", name))


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, pytest.param(True, marks=pytest.mark.long)])
def test_disturbed_and_undisturbed(pool: Pool, sharded: bool) -> None:
    more = ("--sharded",) if sharded else ()
    pool.ranks = 1 + sharded
    pool.up()
    agent = pool.agent()
    submit(pool, "quiet", 0.0, *more)
    expected = trained(pool, "quiet")

    submit(pool, "hit", 0.05, *more)
    pool.until_step("hit", 15, nodes=1)
    agent.send_signal(signal.SIGTERM)
    agent.wait(LIMIT_S)
    agent = pool.agent()
    pool.until_step("hit", 35, nodes=1)
    pool.pilot("down")
    pool.up()
    agent = pool.agent()
    pool.until_step("hit", 60, nodes=1)
    pool.kill_tree(agent)
    pool.agent()
    found = trained(pool, "hit")
    assert pool.trainer("hit").losses == 1
    assert found.keys() == expected.keys()
    assert [name for name, one in expected.items() if not torch.equal(one, found[name])] == []
