"""Members that do not answer while others wait for them."""

from __future__ import annotations

import pytest

from pilot.core.commands import DissolveGroup, FormGroup, StopWorker, WriteCheckpoint
from pilot.core.events import GroupBroken, GroupFormed, GroupStalled, TrainerHeld
from pilot.core.ids import NodeId
from pilot.protocol import wire
from pilot.service.agents.silence import ANSWER_S, SilenceChecks
from tests.unit.service.agents.test_roster import roster
from tests.unit.service.stage import A, B, C, G, Stage, T

WAITS = wire.RankStalled(T, G, 12, 1.5, summing=True)
REASON = "for 2 s b did not answer, while others waited"


class Asked(Stage):
    """A, B and C train; ``asked`` are the nodes that were asked whether they are there."""

    def __init__(self) -> None:
        super().__init__()
        self.trains(A, B, C)
        self.roster, self.asked = roster(A, B, C), list[NodeId]()
        self.checks = SilenceChecks(self.core, self.roster, lambda node, _message: self.asked.append(node))
        self.checks.rank_stalled(10.0, A, WAITS)

    def hear(self, now_s: float, *nodes: NodeId) -> None:
        for node in nodes:
            self.roster.heard(now_s, self.roster.pilots[node])


@pytest.fixture
def stage() -> Asked:
    return Asked()


def test_all_members_are_asked_once(stage: Asked) -> None:
    assert stage.asked == [A, B, C]
    stage.checks.rank_stalled(10.5, C, WAITS)
    assert stage.asked == [A, B, C]


def test_a_member_that_does_not_answer_is_left_out_and_not_accused(stage: Asked) -> None:
    stage.hear(10.1, A, C)
    assert stage.checks.overdue(10.0 + ANSWER_S / 2) == []
    (event,) = stage.checks.overdue(10.0 + ANSWER_S)
    assert event == GroupBroken(T, G, REASON, silent=(B,))
    commands = stage.post(event)
    assert [type(command) for command in commands] == [DissolveGroup, StopWorker, FormGroup]
    assert (commands[1].node, commands[1].kill) == (B, True)
    assert commands[2].members == (A, C)
    assert not stage.core.pool.aside
    assert stage.checks.overdue(100.0) == [], "it is found once"


def test_members_that_answer_are_only_waited_for(stage: Asked) -> None:
    stage.hear(10.1, A, B, C)
    assert stage.checks.overdue(10.0 + ANSWER_S) == []
    stage.checks.rank_stalled(20.0, B, WAITS)
    assert stage.asked == [A, B, C] * 2


def test_a_member_that_has_not_come_back_after_a_restart_is_not_silent(stage: Asked) -> None:
    stage.hear(10.1, A, C)
    stage.roster.pilots[B].link = None
    assert stage.checks.overdue(10.0 + ANSWER_S) == []


def test_a_coordinator_that_stood_still_itself_finds_nobody_silent(stage: Asked) -> None:
    stage.roster.excuse(20.0, 10.0)
    assert stage.checks.overdue(20.0) == []


def test_if_nobody_answers_or_none_that_does_has_the_state_the_group_stays(stage: Asked) -> None:
    assert stage.post(GroupBroken(T, G, REASON, silent=(A, B, C))) == []
    assert stage.core.trainers[T].members == (A, B, C)


def test_a_member_whose_connection_has_closed_is_not_relied_upon(stage: Asked) -> None:
    stage.hear(10.1, A, C)
    for node in (A, C):
        stage.roster.pilots[node].away_s = 11.9
    assert stage.checks.overdue(10.0 + ANSWER_S) == [], "B may be the last one with the state"


def test_nobody_is_left_out_if_the_others_were_too_few_to_go_on() -> None:
    stage = Stage()
    stage.starts(A, B, min_nodes=2)
    stage.forms(A, B)
    stage.post(GroupFormed(T, G, 0))
    assert stage.post(GroupBroken(T, G, REASON, silent=(B,))) == []
    checks = SilenceChecks(stage.core, made := roster(A, B), lambda _node, _message: None)
    checks.rank_stalled(10.0, A, WAITS)
    made.heard(10.1, made.pilots[A])
    assert checks.overdue(10.0 + ANSWER_S) == []


def test_a_group_that_is_not_left_by_its_silent_members_still_completes_its_commands() -> None:
    stage = Stage()
    stage.starts(A, B)
    stage.forms(A, B)
    assert stage.post(GroupBroken(T, G, REASON, silent=(B,))) == [], "nobody has a state yet"
    assert (T, G) in stage.pending.forming
    stage.post(GroupFormed(T, G, 0), TrainerHeld(T))
    assert stage.core.trainers[T].pausing
    stage.post(GroupStalled(T, G, "they wait", 40.0))
    stage.post(GroupBroken(T, G, REASON, silent=(A, B)))
    assert (T, G) in stage.pending.pausing
    assert (T, G) in stage.pending.examining


def test_from_a_group_that_pauses_silent_members_are_left_out_however_few_remain() -> None:
    stage = Stage()
    stage.starts(A, B, min_nodes=2)
    stage.forms(A, B)
    stage.post(GroupFormed(T, G, 0), TrainerHeld(T))
    commands = stage.post(GroupBroken(T, G, REASON, silent=(B,)))
    assert [type(command) for command in commands] == [DissolveGroup, StopWorker, WriteCheckpoint]
    assert commands[2].node == A


@pytest.mark.parametrize(("node", "generation"), [(NodeId("d"), 1), (A, 2)])
def test_only_members_of_a_group_that_trains_can_ask(node: NodeId, generation: int, stage: Asked) -> None:
    stage.checks.overdue(100.0)
    stage.checks.rank_stalled(100.0, node, wire.RankStalled(T, generation, 12, 1.5, summing=True))
    assert stage.asked == [A, B, C]
