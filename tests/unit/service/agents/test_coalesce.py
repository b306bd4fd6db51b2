"""Simultaneous changes are one event; a node appears in it only once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pilot.core.events import Event, GroupBroken, PoolChanged, Unloaded
from pilot.core.pool.node_type import NodeType
from pilot.service.agents.coalesce import GATHER_S, Coalescer
from tests.unit.service.stage import A, B, C, G, T

BROKEN = GroupBroken(T, G, "a rank died")
AGAIN = GroupBroken(T, G, "another member reports it, too")
UNLOADED = GroupBroken(T, G, "no such folder", A, unloaded=Unloaded.UNREAD)


@pytest.mark.parametrize(
    ("happens", "events"),
    [
        (
            lambda g: (
                g.lost(1.0, A, "lost"),
                g.noticed(1.01, B, 31.0, "SIGTERM"),
                g.noticed(1.02, C, 21.0, "SIGTERM"),
            ),
            [PoolChanged(noticed=(B, C), lost=(A,), deadline_s=21.0, cause="lost; SIGTERM")],
        ),
        (
            lambda g: (g.joined(1.0, A), g.ends(1.0, A, 90.0), g.ends(1.0, B, None)),
            [PoolChanged(joined=(A,), cause="registered", ends=((A, 90.0), (B, None)))],
        ),
        (
            lambda g: (g.joined(1.0, A, NodeType("a100")), g.joined(1.0, B, NodeType("")), g.joined(1.0, C)),
            [PoolChanged(joined=(A, B, C), cause="registered", types=((A, NodeType("a100")),))],
        ),
        (  # a second fact about a node is a second event
            lambda g: (g.joined(1.0, A), g.joined(1.0, B), g.lost(1.0, A, "killed"), g.lost(1.0, C, "killed")),
            [PoolChanged(joined=(A, B), cause="registered"), PoolChanged(lost=(A, C), cause="killed")],
        ),
        (  # losses come before the broken group, which several members report
            lambda g: (g.broken(1.0, BROKEN), g.broken(1.0, AGAIN), g.lost(1.01, A, "killed")),
            [PoolChanged(lost=(A,), cause="killed"), BROKEN],
        ),
        (lambda g: [g.broken(1.0, event) for event in (BROKEN, UNLOADED, BROKEN)], [UNLOADED]),
    ],
)
def test_simultaneous_changes(happens: Callable[[Coalescer], object], events: list[Event]) -> None:
    gather = Coalescer()
    assert gather.due_s is None
    happens(gather)
    assert gather.due_s == 1.0 + GATHER_S
    assert gather.take(9.0, lambda _: False) == events
    assert gather.due_s is None
    assert gather.take(9.0, lambda _: False) == []


def test_a_broken_group_waits_for_the_fate_of_its_members() -> None:
    gather = Coalescer()
    gather.broken(1.0, BROKEN)
    assert gather.take(2.0, lambda _: True) == []
    assert gather.due_s == 2.0 + GATHER_S
    assert gather.take(9.0, lambda _: False) == [BROKEN]
