"""What the pool knows of its nodes' types."""

from __future__ import annotations

from pilot.core.coordinator import Coordinator
from pilot.core.events import PoolChanged
from pilot.core.ids import NodeId
from pilot.core.pool.node_type import NodeType

A, B, C = (NodeId(f"n{i}") for i in range(3))


def test_nodes_have_the_types_with_which_they_join() -> None:
    core = Coordinator()
    big, small = NodeType("a100", "A100", 4, memory_gb=80.0), NodeType("a40", "A40", 4, memory_gb=48.0)
    core.handle(0.0, PoolChanged(joined=(A, B, C), types=((A, big), (B, small))))
    assert core.pool.types == {"a100": big, "a40": small}
    assert [core.pool.kind_of(node) for node in (A, B, C)] == ["a100", "a40", ""]
    core.handle(1.0, PoolChanged(lost=(A,)))
    assert core.pool.type_of == {B: "a40"}
    assert "a100" in core.pool.types


def test_a_type_has_the_least_memory_that_any_of_its_nodes_has() -> None:
    core = Coordinator()
    types = ((A, NodeType("x", memory_gb=80.0)), (B, NodeType("x", memory_gb=40.0, cores=8)), (C, NodeType("x")))
    core.handle(0.0, PoolChanged(joined=(A, B, C), types=types))
    assert core.pool.types == {"x": NodeType("x", memory_gb=40.0)}
