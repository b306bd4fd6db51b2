"""What the core foretells of trainers that wait, and learns from it."""

from __future__ import annotations

import math

import pytest

from pilot.core.config import CoordinatorConfig
from pilot.core.curves.curve import Curve
from pilot.core.events import DrainRequested
from pilot.core.ids import TrainerId
from pilot.core.plan.prognosis import LATE
from pilot.planners import dp
from tests.property.world import World

HOUR = 3600.0


def pool(nodes: int, *lengths_s: float, longest_s: float = math.inf, most: int = 10) -> World:
    """A pool of ``nodes`` with trainers that need one node, for so long."""
    world = World(CoordinatorConfig(longest_wait_s=longest_s, max_parallel_trainers=most, grace_s=0.0))
    world.join(nodes)
    for number, length_s in enumerate(lengths_s):
        samples = length_s if length_s < math.inf else None
        world.submit(TrainerId(f"t{number}"), 1, 1, Curve.proportional(1.0), fixed_curve=True, samples=samples)
        world.settle(dp.plan)
    return world


def starts(world: World) -> list[float | None]:
    return [one.starts_in_s for one in world.core.prognoses(world.now_s).values()]


def test_whoever_waits_is_foretold_in_the_order_of_submission() -> None:
    world = pool(1, 1000.0, 2000.0, 3000.0)
    assert starts(world) == [pytest.approx(1000.0 * LATE), pytest.approx(3000.0 * LATE)]
    assert [one.place for one in world.core.prognoses(world.now_s).values()] == [1, 2]
    world.send(DrainRequested())
    assert starts(world) == []


def test_turns_are_foretold() -> None:
    world = pool(1, 9 * HOUR, 9 * HOUR, 9 * HOUR, longest_s=HOUR)
    assert starts(world) == [pytest.approx(HOUR, abs=60.0), pytest.approx(2 * HOUR, abs=60.0)]
    world.pass_time(HOUR + 60.0)
    world.settle(dp.plan)
    first, last = starts(world)
    assert (first, last) == (pytest.approx(2 * HOUR, abs=300.0), pytest.approx(HOUR, abs=300.0)), "t0 waits again"


def test_only_so_many_at_once() -> None:
    assert starts(pool(3, 1000.0, 500.0, most=1)) == [pytest.approx(1000.0 * LATE)]


def test_nothing_is_foretold_where_nothing_is_known() -> None:
    world = pool(1, math.inf, 5.0)
    world.core.trainers[TrainerId("t0")].usage.nodes = 0
    (one,) = world.core.prognoses(world.now_s).values()
    assert one.starts_in_s is None or one.rough
