"""Concurrent changes are one event; a node appears in it only once."""

from __future__ import annotations

from pilot.core.events import GroupBroken, PoolChanged, Unloaded
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.service.agents.coalesce import GATHER_S, Coalescer

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
BROKEN = GroupBroken(TrainerId("t"), Generation(2), "a rank died")


def taken(gather: Coalescer) -> list[object]:
    return list(gather.take(9.0, lambda _: False))


def test_nothing_waits_at_first() -> None:
    assert Coalescer().due_s is None


def test_what_happens_within_the_window_is_one_event() -> None:
    gather = Coalescer()
    gather.lost(1.0, A, "its connection closed")
    gather.noticed(1.01, B, 31.0, "SIGTERM")
    gather.noticed(1.02, C, 21.0, "SIGTERM")
    assert gather.due_s == 1.0 + GATHER_S
    cause = "its connection closed; SIGTERM"
    assert taken(gather) == [PoolChanged(noticed=(B, C), lost=(A,), deadline_s=21.0, cause=cause)]
    assert gather.due_s is None
    assert taken(gather) == []


def test_known_ends_come_with_what_else_happened_to_their_nodes() -> None:
    gather = Coalescer()
    gather.joined(1.0, A)
    gather.ends(1.0, A, 90.0)
    gather.ends(1.0, B, None)
    assert taken(gather) == [PoolChanged(joined=(A,), cause="registered", ends=((A, 90.0), (B, None)))]


def test_a_second_fact_about_a_node_is_a_second_event() -> None:
    gather = Coalescer()
    gather.joined(1.0, A)
    gather.joined(1.0, B)
    gather.lost(1.0, A, "killed")
    gather.lost(1.0, C, "killed")
    assert taken(gather) == [
        PoolChanged(joined=(A, B), cause="registered"),
        PoolChanged(lost=(A, C), cause="killed"),
    ]


def test_losses_come_before_the_news_that_their_group_broke_and_members_say_it_once() -> None:
    gather = Coalescer()
    gather.broken(1.0, BROKEN)
    gather.broken(1.0, GroupBroken(BROKEN.trainer, BROKEN.generation, "another member says so too"))
    gather.lost(1.01, A, "killed")
    assert taken(gather) == [PoolChanged(lost=(A,), cause="killed"), BROKEN]


def test_a_member_that_could_not_load_the_state_says_why_its_group_broke() -> None:
    gather = Coalescer()
    unloaded = GroupBroken(BROKEN.trainer, BROKEN.generation, "no such folder", A, unloaded=Unloaded.UNREAD)
    for event in (BROKEN, unloaded, BROKEN):
        gather.broken(1.0, event)
    assert taken(gather) == [unloaded]


def test_a_broken_group_waits_for_the_fate_of_its_members() -> None:
    gather = Coalescer()
    gather.broken(1.0, BROKEN)
    assert gather.take(2.0, lambda _: True) == []
    assert gather.due_s == 2.0 + GATHER_S
    assert taken(gather) == [BROKEN]
