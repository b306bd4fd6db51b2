from dataclasses import replace
from itertools import pairwise

from pilot.core.coordinator import Coordinator
from pilot.core.events import DrainRequested, Event, PoolChanged, TrainerSubmitted
from pilot.core.ids import NodeId, TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.history.timeline import Fate, NodeMark, Span, Timeline, TimelineMaker, Use
from pilot.rundir.entries import Decision
from tests.property.world import World

CNN = TrainerId("cnn")


def lived_through() -> World:
    """Two nodes train; one gets a notice and leaves, the other one is lost."""
    world = World()
    world.nodes = [NodeId("n1"), NodeId("n2")]
    world.send(PoolChanged(joined=tuple(world.nodes)))
    world.send(TrainerSubmitted(TrainerSpec(CNN, 1, 2)))
    world.settle()
    world.send(PoolChanged(noticed=(NodeId("n2"),), deadline_s=99.0))
    world.settle()
    world.lose([NodeId("n2")])
    world.lose([NodeId("n1")])
    return world


def of(world: World, core: Coordinator | None = None) -> Timeline:
    maker = TimelineMaker(core or Coordinator(world.config))
    for number, (now_s, event, commands) in enumerate(world.history):
        maker.note(Decision(number, now_s, event, tuple(commands)))
    return maker.made()


def when(world: World, wanted: type[Event]) -> list[float]:
    return [t for t, event, _ in world.history if isinstance(event, wanted)]


def test_spans_cover_each_nodes_life_without_gaps() -> None:
    world = lived_through()
    line = of(world)
    for node in line.nodes:
        spans = [s for s in line.spans if s.node == node]
        assert spans[0].start_s == 1.0
        assert all(a.end_s == b.start_s for a, b in pairwise(spans))
        assert [s.use for s in spans][:3] == [Use.IDLE, Use.WARMING, Use.TRAINING]
    last = [s for s in line.spans if s.node == "n1"][-1]
    assert last == Span(NodeId("n1"), last.start_s, world.now_s, Use.TRAINING, CNN)


def test_marks_distinguish_notice_from_loss() -> None:
    world = lived_through()
    pool = when(world, PoolChanged)
    assert of(world).marks == (
        NodeMark(NodeId("n1"), pool[0], Fate.JOINED),
        NodeMark(NodeId("n2"), pool[0], Fate.JOINED),
        NodeMark(NodeId("n2"), pool[1], Fate.NOTICE),
        NodeMark(NodeId("n2"), pool[2], Fate.GONE),
        NodeMark(NodeId("n1"), pool[3], Fate.LOST),
    )


def test_a_node_that_goes_at_a_drain_is_neither_preempted_nor_lost() -> None:
    world = World()
    world.nodes = [NodeId("n1")]
    world.send(PoolChanged(joined=tuple(world.nodes)))
    world.send(DrainRequested("pilot down"))
    world.lose([NodeId("n1")])
    assert [mark.fate for mark in of(world).marks] == [Fate.JOINED, Fate.RELEASED]


def test_nodes_are_labelled_with_their_types_where_these_differ() -> None:
    types = {NodeId("a"): "fast", NodeId("b"): "slow"}
    spans = tuple(Span(node, 0.0, 7200.0, Use.IDLE, None) for node in types)
    line = Timeline(tuple(types), spans, (), 7200.0, types)
    assert line.labels == {"a": "a (fast)", "b": "b (slow)"}
    assert replace(line, types=dict.fromkeys(types, "fast")).labels == {"a": "a", "b": "b"}
