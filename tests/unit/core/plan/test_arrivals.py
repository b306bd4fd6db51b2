"""A batch of trainers is planned for as one (MalleTrain §3.2): this counts the cost of each plan and each worker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pilot.core.commands import Command, Solve, StartWorker, StopWorker
from pilot.core.config import CoordinatorConfig
from pilot.core.curves.curve import Curve
from pilot.core.events import ArrivalsDue, PlanFailed, TrainerCancelled, TrainerSubmitted
from pilot.core.ids import TrainerId
from pilot.core.plan.arrivals import ARRIVALS_S, BATCHES_LONGEST, Arrivals
from pilot.core.trainer.spec import TrainerSpec
from pilot.planners import dp
from tests.property.world import World

FLATTENS = Curve.of([(1, 100.0), (8, 600.0), (64, 1600.0)])


def pool(nodes: int, most: int = 10, arrivals_s: float = ARRIVALS_S) -> World:
    world = World(CoordinatorConfig(max_parallel_trainers=most, arrivals_s=arrivals_s))
    if nodes:
        world.join(nodes)
    return world


def submit(world: World, count: int, every_s: float = 0.5) -> None:
    """``count`` trainers one after the other; everything else is answered meanwhile."""
    first = len(world.core.trainers)
    for number in range(first, first + count):
        until_s = world.now_s + every_s
        world.submit(TrainerId(f"t{number}"), max_nodes=64, curve=FLATTENS)
        world.settle(dp.plan)
        world.now_s = until_s
        world.pass_time(0.0)
        world.settle(dp.plan)


def wait(world: World) -> None:
    world.pass_time(BATCHES_LONGEST * ARRIVALS_S)
    world.settle(dp.plan)


def given(world: World, kind: type[Command]) -> int:
    return len(world.given(kind))


def test_ten_submissions_one_after_the_other_make_one_plan() -> None:
    world = pool(64)
    submit(world, 10)
    wait(world)
    assert [given(world, kind) for kind in (Solve, StartWorker, StopWorker)] == [1, 64, 0]
    each_alone = pool(64, arrivals_s=0.0)
    submit(each_alone, 10)
    assert [given(each_alone, kind) for kind in (Solve, StartWorker, StopWorker)] == [10, 122, 58]


def test_an_arrival_starts_on_its_minimum_of_the_free_nodes() -> None:
    world = pool(3)
    came = [
        TrainerSpec(TrainerId(f"t{number}"), min_nodes=number, max_nodes=64, curve=FLATTENS) for number in (1, 2, 1)
    ]
    for number, spec in enumerate(came):
        world.send(TrainerSubmitted(replace(spec, trainer=TrainerId(f"t{number}"))))
    assert given(world, Solve) == 0
    assert [len(trainer.target) for trainer in world.core.trainers.values()] == [1, 2, 0], "the third found none free"
    assert given(world, StartWorker) == 3
    wait(world)
    assert (given(world, Solve), given(world, StopWorker)) == (1, 0)


def test_an_arrival_takes_no_nodes_while_a_plan_is_made() -> None:
    world = pool(8)
    submit(world, 1)
    world.pass_time(BATCHES_LONGEST * ARRIVALS_S)
    world.submit(TrainerId("late"), max_nodes=64, curve=FLATTENS)
    late = world.core.trainers[TrainerId("late")]
    assert world.core.solving
    assert not late.target
    world.settle(dp.plan)
    assert not world.core.solving
    world.join(1)
    [solve] = [c for c in world.history[-1][2] if isinstance(c, Solve)]
    assert [c.trainer for c in solve.problem.candidates] == ["t0", "late"]
    world.send(PlanFailed(solve.plan_id, "no solver"))
    assert not world.core.solving


def test_periodic_plans_do_not_start_arrivals_small() -> None:
    world = World(CoordinatorConfig(arrivals_s=ARRIVALS_S, decide_every_s=600.0))
    world.join(4)
    world.submit(TrainerId("t"), max_nodes=64, curve=FLATTENS)
    assert given(world, StartWorker) == 0


def test_a_trainer_that_only_queues_causes_no_plan() -> None:
    world = pool(4, most=2)
    submit(world, 2)
    wait(world)
    before = given(world, Solve)
    submit(world, 5)
    wait(world)
    assert given(world, Solve) == before == 1, "beyond Pj_max"
    empty = pool(0)
    submit(empty, 3)
    wait(empty)
    assert given(empty, Solve) == 0, "no node to give"
    empty.join(3)
    assert given(empty, Solve) == 1


def test_trainers_that_keep_coming_are_not_waited_for_for_ever() -> None:
    world = pool(4, most=100)
    submit(world, 30, every_s=1.0)
    due_s = [now_s for now_s, event, _ in world.history if isinstance(event, ArrivalsDue)]
    assert due_s, "nobody got nodes while others came"
    first_s = next(now_s for now_s, event, _ in world.history if isinstance(event, TrainerSubmitted))
    assert due_s[0] - first_s == pytest.approx(BATCHES_LONGEST * ARRIVALS_S, abs=3.0)


def test_another_plan_includes_pending_arrivals() -> None:
    world = pool(2)
    submit(world, 1, every_s=0.0)
    world.join(1)
    [solve] = [c for c in world.history[-1][2] if isinstance(c, Solve)]
    assert [c.trainer for c in solve.problem.candidates] == ["t0"]
    wait(world)
    assert given(world, Solve) == 1


def test_a_trainer_cancelled_before_its_plan_causes_none() -> None:
    world = pool(2)
    submit(world, 1, every_s=0.0)
    world.send(TrainerCancelled(TrainerId("t0")))
    wait(world)
    assert given(world, Solve) == 0


@pytest.mark.parametrize(
    ("came", "reason"),
    [("", ""), ("a", "trainer a arrived"), ("ab", "2 trainers arrived"), ("abc", "3 trainers arrived")],
)
def test_the_reason_of_a_plan_counts_each_arrival_once(came: str, reason: str) -> None:
    arrivals = Arrivals()
    for name in came:
        arrivals.note(1.0, TrainerId(name))
    assert [arrivals.close(), arrivals.close()] == [reason, ""]
