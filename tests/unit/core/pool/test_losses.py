"""How often trainers lose nodes: what a pool has seen, and how it fades."""

from __future__ import annotations

import pytest

from pilot.core.config import CoordinatorConfig
from pilot.core.curves.curve import Curve
from pilot.core.events import DrainRequested, PoolChanged
from pilot.core.ids import TrainerId
from pilot.core.pool.losses import MEMORY_S, NO_LOSS, Losses, LossRate
from tests.property.world import World


def test_rates_are_per_node_second_and_per_second_with_nodes() -> None:
    losses = Losses()
    losses.note(1000.0, 4)
    assert losses.rate == NO_LOSS, "no time on nodes yet"
    losses.note(1001.0, 4)
    assert losses.rate == NO_LOSS, "and then no loss"
    losses.note(1002.0, 1, lost=3)
    assert losses.rate.nodes_per_node_s == pytest.approx(3 / 8, rel=1e-3)
    assert losses.rate.events_per_s == pytest.approx(1 / 2, rel=1e-3)
    losses.note(1003.0, 0)
    rate = losses.rate
    losses.note(9000.0, 2)
    assert losses.rate.nodes_per_node_s == pytest.approx(rate.nodes_per_node_s), "time without nodes proves nothing"


def test_old_losses_fade() -> None:
    losses = Losses()
    losses.note(0.0, 10)
    losses.note(100.0, 10, lost=10)
    losses.note(100.0 + 10 * MEMORY_S, 10)
    assert 0 < losses.rate.nodes_per_node_s < 1e-4 * 10 / 1000


def test_a_trainer_is_hit_by_its_nodes_and_no_more_often_than_the_pool() -> None:
    rate = LossRate(0.01, 0.05)
    assert [rate.hits_per_s(n) for n in (0, 1, 5, 64)] == pytest.approx([0.0, 0.01, 0.05, 0.05])


def test_losses_of_trainers_count_once_and_are_in_timed_problems() -> None:
    for timed in (True, False):
        world = World(CoordinatorConfig(timed=timed))
        world.join(6)
        world.submit(TrainerId("t"), 1, 4, curve=Curve.proportional())
        world.settle()
        core = world.core
        (trainer,) = core.trainers.values()
        world.send(PoolChanged(lost=tuple(n for n in core.pool.nodes if core.pool.is_free(n))[:1]))
        assert core.losses.lost == 0, "nobody had it"
        noticed, killed = trainer.target[:2]
        world.send(PoolChanged(noticed=(noticed,)))
        world.lose([noticed, killed])
        assert (core.losses.lost, core.losses.events) == pytest.approx((2, 2), rel=0.01)
        assert core.problem is not None and core.problem.losses == (core.losses.rate if timed else NO_LOSS)
        world.send(DrainRequested())
        before = core.losses.events
        world.lose(core.pool.nodes)
        assert core.losses.events == pytest.approx(before, rel=0.01), "a drain is no preemption"
