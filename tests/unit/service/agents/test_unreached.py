"""Why a group does not work: who cannot reach whom."""

from __future__ import annotations

from pilot.core.commands import FormGroup
from pilot.core.events import GroupBroken, GroupExamined, GroupPaused, StallFinding
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.protocol.wire import PeersUnreached
from pilot.service.agents.members import Unreached
from pilot.service.agents.pending import PendingCommands

T, G = TrainerId("t1"), Generation(1)
A, B, C = map(NodeId, "abc")
LATE, STUCK = (
    GroupBroken(T, G, "not formed within 60 s"),
    GroupExamined(T, G, ((A, StallFinding.WAITS), (B, StallFinding.WAITS))),
)


def of_two() -> tuple[PendingCommands, Unreached]:
    """``A`` and ``B`` are ranks 0 and 1."""
    pending = PendingCommands()
    pending.groups[T, G] = FormGroup(T, G, (A, B), None, "")
    return pending, Unreached(pending)


def test_a_group_that_does_not_form_or_stands_still_is_explained_by_what_its_members_said_last() -> None:
    _, unreached = of_two()
    assert unreached.explained(LATE) is LATE
    for node, ranks in ((C, [0]), (A, [0, 1, 7]), (A, [1]), (B, [0])):
        unreached.reported(node, PeersUnreached(T, 1, ranks))
    for event in (LATE, STUCK):
        told = unreached.explained(event)
        assert isinstance(told, GroupBroken | GroupExamined)
        assert told.unreached == ((A, B), (B, A))
    paused = GroupPaused(T, G, 3)
    assert unreached.explained(paused) is paused


def test_whoever_is_reached_after_all_is_not_named() -> None:
    _, unreached = of_two()
    unreached.reported(A, PeersUnreached(T, 1, [1]))
    unreached.reported(A, PeersUnreached(T, 1, []))
    assert unreached.explained(LATE) is LATE


def test_what_is_said_of_other_groups_is_not_heard_and_of_old_ones_forgotten() -> None:
    pending, unreached = of_two()
    unreached.reported(A, PeersUnreached(T, 2, [1]))
    unreached.reported(A, PeersUnreached(T, 1, [1]))
    del pending.groups[T, G]
    unreached.reported(A, PeersUnreached(T, 1, [1]))
    assert unreached.explained(LATE) is LATE
