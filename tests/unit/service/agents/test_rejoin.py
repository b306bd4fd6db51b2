"""A pilot that comes back: the core is told once what was missed, and what was answered since is left alone."""

from __future__ import annotations

import pytest

from pilot.core.commands import DissolveGroup, FormGroup, StartWorker, StopWorker
from pilot.core.events import ExitCause, GroupBroken, GroupFormed, WorkerExited, WorkerReady
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.protocol import wire
from pilot.service.agents.pending import PendingCommands
from pilot.service.agents.rejoin import Rejoined
from tests.property.test_core import play
from tests.property.world import World

T = TrainerId("t0")
FORMING = [("join", 1), ("submit", 4), ("answer", 0), ("answer", 0), ("answer", 0)]
"""Two nodes, one trainer for two nodes, its first group forms."""


def hello(*workers: tuple[str, int, int, bool], uid: str = "") -> wire.Hello:
    return wire.Hello("p", "secret", "h", "a", 1, workers=[(name, uid, *rest) for name, *rest in workers])


def rejoined(world: World, node: NodeId, said: wire.Hello) -> Rejoined:
    pending = PendingCommands()
    for entry in world.history:
        pending.note(*entry)
    return Rejoined(world.core, pending, node, said, world.now_s)


@pytest.fixture
def world() -> World:
    return play(FORMING)


def node_of(world: World) -> NodeId:
    return next(p.members[0] for p in world.pending if isinstance(p, FormGroup))


def trains(world: World) -> NodeId:
    node = node_of(world)
    world.complete(0, lambda _: pytest.fail("no plan is asked for"))
    assert world.core.trainers[T].group is not None
    return node


def test_nothing_was_missed_where_all_is_as_believed(world: World) -> None:
    node = trains(world)
    back = rejoined(world, node, hello((T, 1, 9, True)))
    assert (back.strays(), back.missed(), back.unanswered()) == ([], [], [])


def test_a_worker_that_is_gone_is_told_once(world: World) -> None:
    node = trains(world)
    back = rejoined(world, node, hello())
    [event] = back.missed()
    assert isinstance(event, WorkerExited)
    assert (event.node, event.cause) == (node, ExitCause.DIED)
    world.send(world.worker_dies(T, node))
    assert back.missed() == []


def test_a_worker_that_became_ready_is_told() -> None:
    world = play(FORMING[:3])
    start = next(p for p in world.pending if isinstance(p, StartWorker))
    assert rejoined(world, start.node, hello((T, 0, 0, True))).missed() == [WorkerReady(T, start.node)]
    assert rejoined(world, start.node, hello((T, 0, 0, False))).missed() == []


def test_a_start_that_was_not_heard_is_ordered_again_and_no_death() -> None:
    world = play(FORMING[:3])
    start = next(p for p in world.pending if isinstance(p, StartWorker))
    back = rejoined(world, start.node, hello())
    assert back.missed() == []
    assert [given.command for given in back.unanswered()] == [start]


def test_a_group_that_forms_is_formed_anew_unless_it_is_up_by_then(world: World) -> None:
    node = node_of(world)
    back = rejoined(world, node, hello((T, 1, 0, True)))
    [event] = back.missed()
    assert isinstance(event, GroupBroken)
    world.pending.clear()
    world.send(GroupFormed(T, Generation(1), 0))
    assert back.missed() == []


@pytest.mark.parametrize("generation", [0, 7])
def test_a_rank_that_is_gone_breaks_its_group(world: World, generation: int) -> None:
    node = trains(world)
    back = rejoined(world, node, hello((T, generation, 9, True)))
    [event] = back.missed()
    assert isinstance(event, GroupBroken)
    assert event.generation == 1


def test_what_nobody_needs_is_ended(world: World) -> None:
    node = trains(world)
    back = rejoined(world, node, hello((T, 7, 9, True), ("unknown", 1, 1, True)))
    assert [type(m) for m in back.strays()] == [DissolveGroup, StopWorker]


def test_a_worker_of_another_trainer_of_the_same_name_is_ended_and_is_not_ours(world: World) -> None:
    node = trains(world)
    back = rejoined(world, node, hello((T, 1, 9, True), uid="of another pool"))
    assert [type(m) for m in back.strays()] == [StopWorker]
    assert [type(event) for event in back.missed()] == [WorkerExited]
