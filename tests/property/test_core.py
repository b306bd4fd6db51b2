"""Random event sequences against the core: its invariants hold, it comes to rest, and a replay is identical."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from pilot.core.coordinator import Coordinator
from pilot.core.events import DrainRequested, PoolChanged, TrainerCancelled, TrainerFinished, TrainerSubmitted
from pilot.core.ids import TrainerId
from pilot.core.spec import TrainerSpec
from tests.property.world import World, random_plan

ACTIONS = ["join", "notice", "lose", "submit", "cancel", "finish", "answer", "answer", "answer", "fail", "die", "step"]
ACTIONS += ["stall", "publish"]
scripts = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1 << 16)), max_size=80)


def act(world: World, action: str, number: int) -> None:
    """One thing that befalls the world; ``number`` says which, how many, whom."""
    rng = random.Random(number)
    trainers = list(world.core.trainers)
    match action:
        case "join":
            world.join(1 + number % 3)
        case "notice" if world.nodes:
            leaving = tuple(rng.sample(world.nodes, min(len(world.nodes), 1 + number % 3)))
            world.send(PoolChanged(leaving=leaving, deadline_s=world.now_s + 30))
        case "lose" if world.nodes:
            world.lose(rng.sample(world.nodes, min(len(world.nodes), 1 + number % 3)))
        case "submit":
            low = 1 + number % 3
            world.send(TrainerSubmitted(TrainerSpec(TrainerId(f"t{len(trainers)}"), low, low + number % 4)))
        case "cancel" if trainers:
            world.send(TrainerCancelled(rng.choice(trainers)))
        case "finish" if trainers:
            trainer = rng.choice(trainers)
            group = world.core.trainers[trainer].group
            if group is not None:
                world.send(TrainerFinished(trainer, group.generation, world.steps.get(trainer, 0), 0))
        case "answer" | "fail":
            world.complete(number, lambda p: random_plan(p, rng), ok=action == "answer")
        case "die" if world.workers:
            world.send(world.worker_dies(*rng.choice(list(world.workers))))
        case "step" if trainers:
            world.step(rng.choice(trainers))
        case "stall" if trainers:
            world.stall(rng.choice(trainers))
        case "publish" if trainers:
            world.publish(rng.choice(trainers), number / 4096)


def play(script: list[tuple[str, int]]) -> World:
    world = World()
    for action, number in script:
        act(world, action, number)
    return world


@settings(max_examples=400, deadline=None)
@given(scripts)
def test_invariants_hold_and_every_trainer_that_can_run_runs(script: list[tuple[str, int]]) -> None:
    world = play(script)
    world.settle()
    world.join(1)
    world.settle()
    for trainer in world.core.admitted():
        members = set(trainer.group.members) if trainer.group is not None else set()
        assert members == set(trainer.target) or trainer.parked, f"{trainer.id} does not run where the plan wants it"
        assert set(trainer.workers) == set(trainer.target)
    assert not [n for n in world.core.pool.leaving if n in world.core.pool.occupant]


@settings(max_examples=150, deadline=None)
@given(scripts)
def test_a_drain_leaves_nothing(script: list[tuple[str, int]]) -> None:
    world = play(script)
    world.send(DrainRequested())
    world.settle()
    assert world.workers == {}
    assert set(world.core.pool.leaving) == set(world.nodes)


@settings(max_examples=150, deadline=None)
@given(scripts)
def test_a_replay_gives_the_same_commands(script: list[tuple[str, int]]) -> None:
    world = play(script)
    again = Coordinator(world.config)
    for now_s, event, commands in world.history:
        assert again.handle(now_s, event) == commands
