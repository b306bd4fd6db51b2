"""Random event sequences on nodes of several types: trainers only get what they can use, and what plans say."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from pilot.core.commands import Command
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.events import Event, ExitCause, PlanReady, PoolChanged, SpeedsMeasured, WorkerExited
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.problem import Plan, PlanStatus, Problem
from pilot.core.pool.node_type import NodeType
from pilot.planners import make
from pilot.rundir import segments
from tests.property.test_core import ACTIONS, PROFILES, SICKNESS, USERS, act
from tests.property.world import World

PLANNER = make("dp")
TYPES = (NodeType("a100", memory_gb=80.0), NodeType("a40", memory_gb=48.0, charge_factor=0.5), NodeType("v100"))
OWN = ["measure", "measure", "measure alike", "memory", "submit choosy", "minutes", "notice", "calm", "calm"]
scripts = st.lists(
    st.tuples(st.sampled_from([*ACTIONS, *ACTIONS, *SICKNESS, *USERS, *PROFILES, *OWN]), st.integers(0, 1 << 16)),
    max_size=80,
)


def random_plan(problem: Problem, rng: random.Random) -> Plan:
    """Any feasible plan, or else the planner's."""
    left, given = list(problem.types_nodes), {}
    for c in sorted(problem.candidates, key=lambda c: c.pin is None and not c.must_run):
        fit = [k for k, speed in enumerate(c.speeds) if speed]
        fit = [rng.choice(fit)] if c.one_type and fit else rng.sample(fit, len(fit))
        most = c.usable(tuple(left[k] if k in fit else 0 for k in range(len(left))))
        count = rng.choice([n for n in range(most + 1) if c.allows(n)] or [0])
        nodes = [0] * len(left)
        for k in fit:
            nodes[k] = min(left[k], count - sum(nodes))
            left[k] -= nodes[k]
        given[c.trainer] = tuple(nodes)
    if not problem.feasible_on(given):
        return PLANNER(problem)
    counts = tuple((name, sum(given[name])) for name in problem.kept())
    by_type = tuple((name, given[name]) for name in problem.kept())
    return Plan(PlanStatus.OPTIMAL, counts, problem.objective_on(given), by_type=by_type)


class Mixed(World):
    """A world whose nodes have types; after each plan trainers have what it says."""

    def __init__(self, config: CoordinatorConfig | None = None) -> None:
        super().__init__(config or CoordinatorConfig(typed=True, grace_s=0.0, max_parallel_trainers=3))
        self.plans = 0

    def join(self, count: int, prefix: str = "n") -> None:
        rng = random.Random(len(self.history))
        new = [NodeId(f"{prefix}{len(self.history)}-{i}") for i in range(count)]
        self.nodes += new
        types = tuple((node, rng.choice(TYPES)) for node in new if rng.random() < 0.9)
        self.send(PoolChanged(joined=tuple(new), types=types))

    def send(self, event: Event) -> list[Command]:
        problem, asked = self.core.problem, self.core.plan_id
        commands = super().send(event)
        pool = self.core.pool
        for trainer in self.core.trainers.values():
            unfit = [n for n in trainer.target if trainer.unfit(pool, pool.type_of.get(n, ""))]
            assert not unfit, f"{trainer.id} is to run on {unfit}, which it cannot use"
        assert {*pool.type_of, *pool.slow, *pool.contradicted} <= {*pool.numbers}
        if isinstance(event, PlanReady) and event.plan_id == asked == self.core.plan_id and problem is not None:
            self._as_planned(problem, event.plan)
        return commands

    def _as_planned(self, problem: Problem, plan: Plan) -> None:
        if plan.status is PlanStatus.KEPT or not problem.types or self.core.draining:
            return
        self.plans += 1
        for name, nodes in plan.by_type:
            trainer = self.core.trainers.get(name)
            if trainer is None or (trainer.parked and not any(nodes)):
                continue
            found = [sum(self.core.pool.kind_of(node) == kind for node in trainer.target) for kind in problem.types]
            swapped = any(t.evidence.aside for t in self.core.trainers.values())
            assert found == list(nodes) or swapped, f"{name} was to have {nodes} of {problem.types}, and has {found}"

    def complete(self, index: int, _plan: object = None, ok: bool = True) -> None:
        """With plans for several types, where there are."""
        rng = random.Random(index)
        super().complete(index, lambda p: random_plan(p, rng) if p.types else PLANNER(p), ok)

    def measure(self, trainer: TrainerId, number: int, *, equal: bool) -> None:
        """Its nodes are measured; some are slow."""
        core = self.core.trainers[trainer]
        if core.group is not None:
            rates = tuple((node, 50.0 if hash_of(node, number % 3) % 4 == 0 else 100.0) for node in core.members)
            for _ in range(1 + number % 6):
                self.now_s += 29.0
                self.send(SpeedsMeasured(trainer, core.group.generation, rates, equal))


def hash_of(node: str, number: int) -> int:
    """The same in every run."""
    return sum(map(ord, node)) + number


def happen(world: Mixed, action: str, number: int) -> None:
    """One random event."""
    rng, trainers = random.Random(number), list(world.core.trainers)
    match action:
        case "measure" | "measure alike" if trainers:
            world.measure(rng.choice(trainers), number, equal=action == "measure alike")
        case "memory" if world.workers:
            died = world.worker_dies(*rng.choice(list(world.workers)), rng.choice([ExitCause.DIED, ExitCause.RAISED]))
            assert isinstance(died, WorkerExited)
            world.send(replace(died, out_of_memory=True))
        case "submit choosy":
            types = [t.name for t in rng.sample(TYPES, 2)] if number % 2 else []
            speeds = [(t.name, 1.0 + number % 3) for t in TYPES] if number % 5 == 0 else []
            options = {"types": tuple(types), "memory_gb": 60.0 * (number % 3 == 0), "speeds": tuple(speeds)}
            world.submit(f"c{len(world.history)}", 1 + number % 2, 2 + number % 5, **options)
        case "calm":
            world.settle()
        case "minutes":
            world.pass_time(60.0)
        case _:
            act(world, action, number)


def play(script: list[tuple[str, int]], config: CoordinatorConfig | None = None) -> Mixed:
    """A pool of six nodes, and what ``script`` says."""
    world = Mixed(config)
    world.join(3)
    world.join(3)
    for action, number in script:
        happen(world, action, number)
    return world


def one_is_slow() -> Mixed:
    """A trainer finds that one of its nodes is slow."""
    world = Mixed()
    World.join(world, 3)
    world.submit("t", 3, 3)
    world.settle()
    trainer = world.core.trainers[TrainerId("t")]
    for _ in range(5):
        world.now_s += 29.0
        rates = tuple((node, 40.0 if node == trainer.members[0] else 100.0) for node in trainer.members)
        world.send(SpeedsMeasured(trainer.id, trainer.generation, rates))
    return world


@settings(max_examples=300, deadline=None)
@given(scripts, st.sampled_from((0.0, 0.0, 60.0)), st.sampled_from((3, None)))
def test_trainers_get_what_plans_say_and_only_what_they_can_use(
    script: list[tuple[str, int]], every_s: float, most: int | None
) -> None:
    config = CoordinatorConfig(typed=True, grace_s=0.0, decide_every_s=every_s, max_parallel_trainers=most)
    world = play(script, config)
    world.settle()
    for trainer in world.core.stranded():
        assert not trainer.target
        assert world.core.unfit(trainer)


@settings(max_examples=100, deadline=None)
@given(scripts)
def test_a_core_restored_from_a_snapshot_decides_the_same(script: list[tuple[str, int]]) -> None:
    world = play(script[: len(script) // 2])
    other, known = Coordinator(world.config), len(world.history)
    other.restore(segments.state_of(segments.state_bytes(world.core)))
    for action, number in script[len(script) // 2 :]:
        happen(world, action, number)
    for now_s, event, commands in world.history[known:]:
        assert other.handle(now_s, event) == commands
    assert segments.state_bytes(other) == segments.state_bytes(world.core)


@settings(max_examples=100, deadline=None)
@given(scripts)
def test_a_planner_that_cannot_tell_types_apart_still_gives_trainers_only_what_they_can_use(
    script: list[tuple[str, int]],
) -> None:
    world = play(script, CoordinatorConfig(grace_s=0.0))
    world.settle()
    assert all(not command.problem.types for command in world.pending if hasattr(command, "problem"))
