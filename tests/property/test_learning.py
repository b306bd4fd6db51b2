"""The effect of learned curves on plans: a trainer measured differently than assumed requests a new plan."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from pilot.core.commands import Solve
from pilot.core.config import CoordinatorConfig
from pilot.core.curves.measured import Measured
from pilot.core.events import TrainerCancelled
from pilot.core.ids import TrainerId
from pilot.core.plan.objective import throughput
from pilot.core.trainer.spec import TrainerSpec
from pilot.planners import dp
from tests.property.world import World

A, B = TrainerId("a"), TrainerId("b")


def submit(world: World, *names: TrainerId, **given: int) -> None:
    for name in names:
        world.submit(name, **given)
    world.settle(dp.plan)


def train(world: World, seconds: int, rate: Callable[[TrainerId, int], float]) -> int:
    """All train for this long and report every five seconds; returns how many problems were posed meanwhile."""
    began = len(world.history)
    for _ in range(seconds // 5):
        world.now_s += 5.0 - len(world.core.trainers)
        for name in list(world.core.trainers):
            if (group := world.core.trainers[name].group) is not None:
                world.step(name, rate(name, len(group.members)))
        world.settle(dp.plan)
    return len(world.given(Solve, began))


def held(world: World, name: TrainerId) -> int:
    return len(world.core.trainers[name].target)


def test_a_trainer_that_does_not_scale_gives_its_nodes_to_one_that_does() -> None:
    world = World(CoordinatorConfig())
    world.join(1)
    submit(world, A)
    train(world, 60, lambda *_: 100.0)
    world.join(15)
    world.settle(dp.plan)
    assert held(world, A) == 16
    train(world, 90, lambda *_: 100.0)
    submit(world, B)
    train(world, 600, lambda name, n: 100.0 if name == A else 80.0 * n)
    assert (held(world, A), held(world, B)) == (1, 15)


def test_also_if_it_shares_the_pool_before_anybody_knows_that_it_does_not_scale() -> None:
    world = World(CoordinatorConfig())
    world.join(1)
    submit(world, A)
    train(world, 30, lambda *_: 100.0)
    world.join(15)
    submit(world, B)
    before = held(world, A)
    posed = train(world, 1200, lambda name, n: 100.0 if name == A else 80.0 * n)
    assert before > 4
    assert held(world, A) <= 2
    assert posed <= 10


def test_of_ten_unknown_trainers_each_gets_some_nodes() -> None:
    for config in (CoordinatorConfig(), CoordinatorConfig(objective=throughput)):
        world = World(config)
        world.join(64)
        submit(world, *(TrainerId(f"t{i}") for i in range(10)))
        assert all(held(world, name) >= 1 for name in world.core.trainers)


def test_an_unknown_trainer_is_tried_whatever_the_unit_of_samples() -> None:
    world = World(CoordinatorConfig(objective=throughput))
    world.join(16)
    submit(world, A, rescale_down_s=1)
    train(world, 120, lambda _, n: 5000.0 * n**0.8)
    submit(world, B)
    assert held(world, B) >= 2


def test_noise_asks_for_no_plan_and_news_at_a_bounded_rate() -> None:
    noise = random.Random(1)
    world = World(CoordinatorConfig())
    world.join(8)
    submit(world, A, B)
    speed = {A: 100.0, B: 300.0}
    train(world, 600, lambda name, n: speed[name] * n**0.9 * noise.gauss(1, 0.03))
    assert train(world, 1800, lambda name, n: speed[name] * n**0.9 * noise.gauss(1, 0.03)) == 0
    assert train(world, 1200, lambda name, _: speed[name] * noise.uniform(0.1, 10)) <= 20


def test_the_pool_learns_priors_from_its_trainers() -> None:
    world = World(CoordinatorConfig())
    world.join(1)
    for name in map(TrainerId, ("a1", "a2", "a3", "a4")):
        submit(world, name)
        train(world, 30, lambda _, n: 100.0 * n / (1 + 0.5 * math.log2(n)))
        world.join(7)
        world.settle(dp.plan)
        train(world, 30, lambda _, n: 100.0 * n / (1 + 0.5 * math.log2(n)))
        world.send(TrainerCancelled(name))
        world.settle(dp.plan)
        world.lose(world.nodes[1:])
    submit(world, B)
    before, after = Measured(TrainerSpec(B)).curve.at(64), world.core.trainers[B].measured.planned.at(64)
    assert after < 0.6 * before
