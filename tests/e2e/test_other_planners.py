"""Huawei's and FLEET's planners in a live pool, on real pilots."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from pilot.core.commands import FormGroup, Solve
from pilot.core.plan.problem import Candidate
from pilot.protocol.pool_status import PoolStatus
from pilot.rundir.journal import Contents
from tests.e2e.acts import replayed
from tests.pools import TRAIN, Pool

pytestmark = pytest.mark.long
SIZES = {1, 2, 4}


def groups(contents: Contents) -> list[int]:
    """The number of members of each group."""
    commands = [command for decision in contents.decisions for command in decision.commands]
    return [len(command.members) for command in commands if isinstance(command, FormGroup)]


def decided(contents: Contents) -> Iterator[Candidate]:
    """The candidates of each problem for which a decision was due."""
    for decision in contents.decisions:
        for command in decision.commands:
            if isinstance(command, Solve) and not command.problem.between:
                yield from command.problem.candidates


def submit(pool: Pool, epochs: int, *options: str) -> str:
    curve = pool.folder / "curve.csv"
    curve.write_text("1,100\n2,160\n4,256\n")
    known = ("--curve", str(curve), "--fixed-curve", *options)
    return pool.submit(TRAIN, "--epochs", str(epochs), "--step-s", "0.05", options=known)


def all_train(status: PoolStatus) -> bool:
    """The trainers that have not ended."""
    return all(trainer.phase in ("running", "finished", "closing") for trainer in status.trainers)


def test_through_a_preemption_every_size_stays_a_power_of_two(pool: Pool) -> None:
    """Progress reports carry the remaining work: sessions know their epochs and the dataset's length."""
    pool.up("--pilots", "0", "--planner", "rolling-horizon", "--decide-every-s", "5")
    agents = [pool.agent() for _ in range(7)]
    first, *others = [submit(pool, epochs, "--sizes", "1,2,4") for epochs in (20, 400, 400)]
    pool.until("all three train", all_train)
    pool.until("one trains on four nodes", lambda s: any(len(trainer.nodes) == 4 for trainer in s.trainers))
    agents[0].send_signal(signal.SIGTERM)
    pool.until_pilots(6)
    pool.kill_tree(agents[1])
    pool.until_pilots(5)
    pool.until("all that are left train again", all_train)
    assert pool.pilot("wait", first).stdout == f"{first} finished\n"
    for name in others:
        pool.pilot("cancel", name)
    contents = replayed(pool)
    assert set(groups(contents)) <= SIZES and 4 in groups(contents)
    left = [candidate.left_s for candidate in decided(contents) if candidate.left_s is not None]
    assert len(left) > 10 and min(left) < max(left) / 2


def test_a_flotilla_goes_through_a_loss(pool: Pool) -> None:
    """Running trainers do not wait for others to join; those that have not joined wait until one has ended."""
    pool.up("--pilots", "0", "--planner", "flotilla")
    agents = [pool.agent() for _ in range(3)]
    names = [submit(pool, 8), submit(pool, 8)]
    pool.until("all three nodes train", lambda s: sum(len(trainer.nodes) for trainer in s.trainers) == 3)
    pool.kill_tree(agents[0])
    for name in names:
        assert pool.pilot("wait", name).stdout == f"{name} finished\n"
    assert sum(groups(replayed(pool))) >= 3
