"""Random event sequences against the core: its invariants hold, it comes to rest, and a replay is identical."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pilot.core.commands import Outcome, SetNodeAside, Solve, StartWorker
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.profile import MEASURE_S, REACH_S, REPORTS
from pilot.core.events import (
    DrainRequested,
    ExitCause,
    GroupFormed,
    NodeCleared,
    PoolChanged,
    PoolReopened,
    TrainerCancelled,
    TrainerHeld,
    TrainerReleased,
    TrainerRemoved,
    TrainerSubmitted,
)
from pilot.core.ids import TrainerId
from pilot.core.trainer.spec import Checking, Profiling
from pilot.rundir.entries import Decision
from pilot.rundir.follower import Follower
from tests.invariants import violations
from tests.property.world import World, random_plan

ACTIONS = ["join", "notice", "lose", "submit", "cancel", "finish", "answer", "answer", "answer", "fail", "die", "step"]
ACTIONS += ["stall", "publish"]
USERS = ["hold", "release", "resume", "remove", "reopen", "submit bounded", "submit sized", "damage"]
REPLICAS = ["submit replicas", "submit replicas"]
SILENCE = ["silent", "silent", "submit sized"]
PROFILES = ["submit profiled", "report", "report", "wait a little"]
CODE = ["load", "load changed"]
PROOFS = ["submit checked", "submit checked"]
SICKNESS = ["sicken", "raise", "slow", "wait", "clear"]
DIFFERENCES = ["joins otherwise", "resumes otherwise"]
ANY = [*ACTIONS, *SICKNESS, *DIFFERENCES, *CODE, *PROOFS, *USERS, *REPLICAS, *SILENCE]
scripts = st.lists(
    st.tuples(st.sampled_from(ANY), st.integers(0, 1 << 16)),
    max_size=80,
)


def act(world: World, action: str, number: int) -> None:
    """One random event in the world; ``number`` decides which, how many, and for whom."""
    rng = random.Random(number)
    trainers = list(world.core.trainers)
    name = TrainerId(f"t{sum(isinstance(event, TrainerSubmitted) for _, event, _ in world.history)}")
    match action:
        case "join":
            world.join(1 + number % 3)
        case "notice" if world.nodes:
            noticed = tuple(rng.sample(world.nodes, min(len(world.nodes), 1 + number % 3)))
            world.send(PoolChanged(noticed=noticed, deadline_s=world.now_s + 30))
        case "lose" if world.nodes:
            world.lose(rng.sample(world.nodes, min(len(world.nodes), 1 + number % 3)))
        case "submit" | "submit bounded" | "submit sized":
            low = 1 + number % 3
            sizes = (low, 2 * low, 4 * low) if action == "submit sized" else ()
            budget = 0.02 if action == "submit bounded" else None
            world.submit(name, low, max((*sizes, low + number % 4)), budget_node_hours=budget, sizes=sizes)
        case "submit replicas":
            size = 2 + number % 2
            world.submit(name, 1, size * (1 + number % 3), nodes_per_replica=size)
        case "submit checked":
            check = Checking.REQUIRE if number % 2 else Checking.AUTO
            world.submit(name, 1, 1 + number % 5, check=check)
        case "submit profiled":
            profile = Profiling.INVERSE if number % 3 == 0 else Profiling.AUTO
            world.submit(name, 1 + number % 2, 4 + number % 6, profile=profile)
        case "report" if trainers:
            for _ in range(REPORTS):
                world.step(trainers[number % len(trainers)])
        case "wait a little":
            world.pass_time(number / 256)
        case "cancel" if trainers:
            world.send(TrainerCancelled(rng.choice(trainers)))
        case "finish" if trainers:
            world.finish(rng.choice(trainers))
        case "answer" | "fail":
            world.complete(number, lambda p: random_plan(p, rng), ok=action == "answer")
        case "die" if world.workers:
            world.send(world.worker_dies(*rng.choice(list(world.workers))))
        case "step" if trainers:
            world.step(rng.choice(trainers))
        case "sicken" if world.nodes:
            world.sick ^= {rng.choice(world.nodes)}
        case "raise" if world.workers:
            world.send(world.worker_dies(*rng.choice(list(world.workers)), ExitCause.RAISED))
        case "joins otherwise" if world.workers:
            world.send(world.worker_dies(*rng.choice(list(world.workers)), ExitCause.JOINED_OTHERWISE))
        case "resumes otherwise" if world.workers:
            world.send(world.worker_dies(*rng.choice(list(world.workers)), ExitCause.RESUMED_OTHERWISE))
        case "slow" if world.workers:
            world.slow(*rng.choice(list(world.workers)))
        case "load" | "load changed" if world.workers:
            world.load(*rng.choice(list(world.workers)), version=str(action == "load changed" and number % 3))
        case "wait":
            world.pass_time(number / 16)
        case "clear" if world.nodes:
            world.send(NodeCleared(rng.choice(world.nodes)))
        case "stall" if trainers:
            world.stall(rng.choice(trainers))
        case "silent" if trainers:
            world.fall_silent(rng.choice(trainers), rng)
        case "hold" if trainers:
            world.send(TrainerHeld(rng.choice(trainers)))
        case "release" if trainers:
            world.send(TrainerReleased(rng.choice(trainers)))
        case "resume" if trainers:
            world.resume(rng.choice(trainers), from_scratch=number % 2 == 0)
        case "remove" if trainers and number % 8 == 0:
            world.send(TrainerRemoved(rng.choice(trainers)))
        case "reopen" if number % 4 == 0:
            world.send(PoolReopened())
        case "damage" if trainers:
            world.lose_entries(rng.choice(trainers), number % 4)
        case "publish" if trainers:
            world.publish(rng.choice(trainers), number / 4096)


def play(script: list[tuple[str, int]], world: World | None = None) -> World:
    world = world or World()
    for action, number in script:
        act(world, action, number)
    return world


@settings(max_examples=400, deadline=None)
@given(scripts, st.sampled_from((0.0, 0.0, 60.0)), st.sampled_from((math.inf, 60.0)), st.sampled_from((3, None)))
def test_invariants_hold_and_every_trainer_that_can_run_runs(
    script: list[tuple[str, int]], every_s: float, longest_s: float, most: int | None
) -> None:
    config = CoordinatorConfig(
        grace_s=0.0, decide_every_s=every_s, longest_wait_s=longest_s, max_parallel_trainers=most
    )
    world = play(script, World(config))
    world.settle()
    world.join(1)
    world.pass_time(every_s)  # until then nothing is decided
    world.settle()
    for trainer in world.core.admitted():
        members = set(trainer.group.members) if trainer.group is not None else set()
        awaits = bool(trainer.evidence.aside)  # a node on which it failed: it is retried there after a while
        runs = members == set(trainer.target)
        assert runs or trainer.parked or awaits, f"{trainer.id} does not run where the plan wants it"
        assert set(trainer.workers) == set(trainer.target)
    assert not [n for n in world.core.pool.leaving if n in world.core.pool.occupant]


@settings(max_examples=150, deadline=None)
@given(scripts, st.data())
def test_a_core_replays_a_journal_with_missing_entries(script: list[tuple[str, int]], data: st.DataObject) -> None:
    """It ends with all trainers whose submission is left, with sound facts, and with the generations that are named."""
    world = play(script)
    first = data.draw(st.integers(0, len(world.history)))
    last = data.draw(st.integers(first, len(world.history)))
    follower = Follower(Coordinator(world.config))
    for seq, (now_s, event, commands) in enumerate(world.history):
        if not first <= seq < last:
            follower.follow(Decision(seq, now_s, event, tuple(commands)))
            assert violations(follower.core) == []
    left = [*world.history[:first], *world.history[last:]]
    came = {event.spec.trainer for _, event, _ in left if isinstance(event, TrainerSubmitted)}
    went = {event.trainer for _, event, _ in world.history if isinstance(event, TrainerRemoved)}
    assert came - went <= follower.core.trainers.keys()
    for trainer in follower.core.trainers.values():
        named = [
            event.generation for _, event, _ in left if isinstance(event, GroupFormed) and event.trainer == trainer.id
        ]
        assert trainer.generation >= max(named, default=0)


@settings(max_examples=150, deadline=None)
@given(scripts)
def test_a_drain_leaves_nothing(script: list[tuple[str, int]]) -> None:
    world = play(script)
    world.send(DrainRequested())
    world.join(1)  # its registration was on its way
    world.settle()
    assert world.workers == {}
    assert set(world.core.pool.leaving) == set(world.nodes)


@settings(max_examples=150, deadline=None)
@given(scripts, st.integers(0, 2))
def test_a_replay_gives_the_same_commands_however_many_ended_trainers_are_kept(
    script: list[tuple[str, int]], kept: int
) -> None:
    config = World().config
    world, again = play(script, World(replace(config, ended_kept=kept))), Coordinator(config)
    for now_s, event, commands in world.history:
        assert again.handle(now_s, event) == commands
    ended = {t.id: t.outcome for t in again.trainers.values() if t.outcome is not None}
    known = {t.id: t.outcome for t in world.core.trainers.values() if t.outcome is not None}
    assert world.core.past | known == ended
    assert len(known) <= kept


profiled = st.lists(
    st.tuples(st.sampled_from([*ACTIONS, *PROFILES, *PROFILES, *USERS]), st.integers(0, 1 << 16)), max_size=60
)


@settings(max_examples=200, deadline=None)
@given(profiled)
@example([("submit profiled", 0), ("submit profiled", 0), ("submit profiled", 1), ("wait a little", 768)])
def test_profiles_end_or_wait_for_nodes_and_their_pins_fit(script: list[tuple[str, int]]) -> None:
    world = World(CoordinatorConfig(max_parallel_trainers=3, grace_s=0.0, arrivals_s=3.0))
    world.join(6)
    play(script, world)
    for _ in range(200):
        world.settle()
        if not any(t.profile.pin is not None for t in world.core.admitted()):
            break
        world.pass_time(MEASURE_S + REACH_S)
    trainers = world.core.admitted()
    assert not any(t.profile.pin is not None for t in trainers), "a profile hangs"
    for problem in [solve.problem for solve in world.given(Solve)]:
        pins = [(c, c.pin) for c in problem.candidates if c.pin is not None]
        assert sum(pin for _, pin in pins) <= problem.nodes
        assert all(c.min_nodes <= pin <= c.max_nodes for c, pin in pins)


sizes = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 3)), min_size=1, max_size=3)
"""min_nodes, and how many more nodes a trainer can use."""


def pool_with(sick: int, healthy: int, trainers: list[tuple[int, int]], order: int) -> World:
    """Trainers on a pool where no script starts on some of the nodes; everything pending is answered."""
    world = World()
    world.join(sick + healthy)
    world.sick = set(random.Random(order).sample(world.nodes, sick))
    for number, (low, more) in enumerate(trainers):
        world.submit(TrainerId(f"t{number}"), low, low + more)
    world.settle()
    return world


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2), st.integers(2, 5), sizes, st.integers(0, 99))
def test_sick_nodes_fail_no_trainer_and_keep_none_waiting(
    sick: int, healthy: int, trainers: list[tuple[int, int]], order: int
) -> None:
    world = pool_with(sick, healthy, trainers, order)
    assert not [t for t in world.core.trainers.values() if t.outcome is not None]
    working = {n for t in world.core.trainers.values() if t.group is not None for n in t.group.members}
    idle = set(world.nodes) - world.sick - working
    for trainer in world.core.admitted():
        can_use = idle.difference(trainer.evidence.aside)
        runs = trainer.group is not None
        assert runs or len(can_use) < trainer.spec.min_nodes, f"{trainer.id} waits, and healthy nodes idle"
    assert world.sick.isdisjoint(working)
    assert world.sick.issuperset(node for node, _, _ in world.core.blame.set_aside()), "a healthy node is blamed"


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 2), st.integers(3, 5), st.integers(0, 99))
def test_a_node_blamed_by_two_trainers_is_set_aside_for_all_until_retried(sick: int, healthy: int, order: int) -> None:
    world = World()
    world.join(sick + healthy)
    world.sick = set(random.Random(order).sample(world.nodes, sick))
    for number in range(4):
        before = len(world.history)
        met = set(world.core.pool.aside)
        world.submit(TrainerId(f"t{number}"), 1, sick + healthy)
        world.settle()
        assert met.isdisjoint(start.node for start in world.given(StartWorker, before))
        world.send(TrainerCancelled(TrainerId(f"t{number}")))
        world.settle()
    world.pass_time(1e5)
    assert not world.core.pool.aside, "it is tried again"


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.booleans())
def test_a_script_that_fails_everywhere_fails_soon_and_no_node_is_blamed(nodes: int, low: int, beside: bool) -> None:
    world = World()
    world.broken_scripts = {TrainerId("bad")}
    world.join(nodes)
    world.submit(TrainerId("bad"), min(low, nodes), min(low, nodes) + 1)
    if beside:
        world.submit(TrainerId("good"), 1, nodes)
    world.settle()
    bad = world.core.trainers[TrainerId("bad")]
    world.send(TrainerCancelled(TrainerId("good")))
    world.settle()
    assert bad.outcome is Outcome.FAILED
    tried = [start for start in world.given(StartWorker) if start.trainer == bad.id]
    assert len(tried) <= max(3, bad.spec.max_nodes) + bad.spec.max_nodes
    assert all(aside.trainer is not None for aside in world.given(SetNodeAside))
    assert not world.core.pool.aside


@settings(max_examples=150, deadline=None)
@given(scripts)
def test_nothing_is_held_against_nodes_for_ever(script: list[tuple[str, int]]) -> None:
    world = play(script)
    world.settle()
    world.sick.clear()
    world.pass_time(1e6)
    assert not list(world.core.blame.set_aside())
    world.settle()
    for trainer in world.core.admitted():
        assert not trainer.refusal
