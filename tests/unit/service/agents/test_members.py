"""Reports of a group's members: addresses, peers that they cannot reach, and findings of an examination."""

from __future__ import annotations

import pytest

from pilot.core.commands import ExamineGroup, FormGroup
from pilot.core.events import (
    GroupBroken,
    GroupExamined,
    GroupPaused,
    GroupStalled,
    PoolChanged,
    StallFinding,
    TrainerSubmitted,
)
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.protocol import wire
from pilot.protocol.wire import GroupAddresses, RankAddress, RankExamined, RankJoined
from pilot.service.agents.members import EXAMINE_LIMIT_S, Rendezvous, StallChecks, Unreached
from pilot.service.agents.pending import Given, PendingCommands
from tests.unit.service.stage import A, B, C, G, Stage, T

D = NodeId("d")
WAITING = wire.RankStalled(T, 1, 12, 30.0, summing=True)
LATE = GroupBroken(T, G, "not formed within 60 s")
STUCK = GroupExamined(T, G, ((A, StallFinding.WAITS), (B, StallFinding.WAITS)))


class Forming:
    """A group of A and B forms in generation 1."""

    def __init__(self) -> None:
        self.pending = PendingCommands()
        self.sent: list[tuple[NodeId, wire.Sent]] = []
        self.rendezvous = Rendezvous(self.pending, lambda *sent: self.sent.append(sent))
        self.unreached = Unreached(self.pending)
        self.order(1)

    def order(self, generation: int) -> None:
        group = FormGroup(T, Generation(generation), (A, B), None, "")
        self.pending.forming = {(T, group.generation): Given(group, 0.0)}
        self.pending.groups = {(T, group.generation): group}

    def arrives(self, node: NodeId, puts: dict[str, str], generation: int = 1) -> list[str]:
        """The reasons why that breaks the group."""
        events = self.rendezvous.arrived(node, RankAddress(T, generation, puts, f"{node}:1"))
        return [event.reason for event in events if isinstance(event, GroupBroken)]


@pytest.fixture
def forming() -> Forming:
    return Forming()


def test_all_get_the_addresses_when_all_have_arrived_and_again_at_the_next_barrier(forming: Forming) -> None:
    for value in ("first", "second"):
        forming.arrives(B, {"b": value})
        assert forming.sent == []
        forming.arrives(A, {"a": value})
        table = GroupAddresses(T, 1, {"b": value, "a": value}, ["a:1", "b:1"])
        assert forming.sent == [(A, table), (B, table)]
        forming.sent.clear()


def test_strangers_and_other_generations_are_ignored(forming: Forming) -> None:
    assert forming.arrives(C, {"c": "x"}) == forming.arrives(A, {"a": "x"}, 2) == forming.arrives(A, {"a": "x"}) == []
    assert forming.sent == []


def test_the_leader_reports_for_all_that_they_have_joined(forming: Forming) -> None:
    for node, generation in ((C, 1), (B, 1), (A, 2)):
        forming.rendezvous.joined(node, RankJoined(T, generation))
        assert not forming.rendezvous.have_met((T, G))
    forming.rendezvous.joined(A, RankJoined(T, 1))
    assert forming.rendezvous.have_met((T, G))
    forming.pending.forming.clear()
    forming.rendezvous.joined(A, RankJoined(T, 1))
    assert not forming.rendezvous.have_met((T, G))


def test_addresses_of_a_generation_go_with_it(forming: Forming) -> None:
    forming.arrives(A, {"a": "x"})
    forming.pending.forming.clear()
    forming.arrives(B, {"b": "x"})
    forming.order(2)
    forming.arrives(B, {"b": "y"}, 2)
    assert forming.sent == []
    forming.arrives(A, {"a": "y"}, 2)
    assert forming.sent[0] == (A, GroupAddresses(T, 2, {"b": "y", "a": "y"}, ["a:1", "b:1"]))


@pytest.mark.parametrize(
    ("puts", "reason"),
    [
        ({"a": "mine"}, "b: it sent an address key of another rank"),
        ({"b": "x\ncmd=barrier_out"}, "b: PMI: not a key and a value"),
        ({"b c": "x"}, "b: PMI: not a key and a value"),
        ({f"b{i}": "x" for i in range(100)}, "b: it sent 100 keys"),
    ],
)
def test_a_group_with_a_liar_is_broken(forming: Forming, puts: dict[str, str], reason: str) -> None:
    forming.arrives(A, {"a": "x"})
    (broken,) = forming.arrives(B, puts)
    assert broken.startswith(reason)
    assert forming.sent == []


@pytest.mark.parametrize(
    ("reports", "pairs"),
    [
        ([], ()),
        ([(C, 1, [0]), (A, 1, [0, 1, 7]), (A, 1, [1]), (B, 1, [0])], ((A, B), (B, A))),
        ([(A, 1, [1]), (A, 1, [])], ()),  # it reached it after all
        ([(A, 2, [1])], ()),  # another group
    ],
)
def test_a_group_that_does_not_form_or_is_stuck_is_explained_by_its_members_latest_reports(
    forming: Forming, reports: list[tuple[NodeId, int, list[int]]], pairs: tuple[tuple[NodeId, NodeId], ...]
) -> None:
    for node, generation, ranks in reports:
        forming.unreached.reported(node, wire.PeersUnreached(T, generation, ranks))
    for event in (LATE, STUCK):
        explained = forming.unreached.explained(event)
        assert isinstance(explained, GroupBroken | GroupExamined)
        assert explained.unreached == pairs
    paused = GroupPaused(T, G, 3)
    assert forming.unreached.explained(paused) is paused
    forming.order(2)
    forming.unreached.reported(A, wire.PeersUnreached(T, 1, [1]))
    assert forming.unreached.explained(LATE) is LATE, "old groups are forgotten"


class Examined(Stage):
    """A, B and C train; D is free."""

    def __init__(self) -> None:
        super().__init__()
        self.checks = StallChecks(self.core, self.pending)
        self.trains(A, B, C)
        self.post(PoolChanged(joined=(D,)))

    def stalls(self) -> None:
        self.post(*self.checks.rank_stalled(A, WAITING))

    def answers(self, node: NodeId, finding: str) -> list[object]:
        return list(self.checks.rank_examined(node, RankExamined(T, 1, finding)))


@pytest.fixture
def stage() -> Examined:
    return Examined()


def test_the_first_member_that_waits_has_all_examined_once(stage: Examined) -> None:
    (event,) = stage.checks.rank_stalled(A, WAITING)
    assert event == GroupStalled(T, G, "a has waited 30.0 s for the sums of step 12", 30.0)
    stage.post(event)
    assert stage.pending.examining[T, G].command == ExamineGroup(T, G, (A, B, C), event.reason, False)
    assert stage.checks.rank_stalled(B, WAITING) == []


def test_a_wait_between_two_steps_counts_as_one_for_sums(stage: Examined) -> None:
    (event,) = stage.checks.rank_stalled(A, wire.RankStalled(T, 1, 12, 30.0, summing=False))
    assert event == GroupStalled(T, G, "a has waited 30.0 s for the other ranks after step 12", 30.0)
    stage.post(event)
    (examined,) = [event for node in (A, B, C) for event in stage.answers(node, "waits")]
    assert isinstance(examined, GroupExamined)
    stage.post(examined)
    assert stage.core.trainers[T].group is None, "they waited for one another"


def test_a_newcomer_that_waits_for_the_others_has_its_forming_group_examined(stage: Examined) -> None:
    stage.post(TrainerSubmitted(TrainerSpec(TrainerId("other"), 1, 2)))
    stage.plan(t=2, other=2)
    forming = stage.core.trainers[T].forming
    assert forming is not None
    waits = wire.RankStalled(T, forming.generation, 12, 30.0, summing=False)
    (left,) = {A, B, C} - set(forming.members)
    assert stage.checks.rank_stalled(left, waits) == []
    stage.post(*stage.checks.rank_stalled(forming.members[0], waits))
    assert stage.pending.examining[T, forming.generation].command.members == forming.members


@pytest.mark.parametrize(("node", "trainer", "generation"), [(D, T, 1), (A, T, 2), (A, "other", 1)])
def test_whoever_is_not_in_the_group_is_ignored(stage: Examined, node: NodeId, trainer: str, generation: int) -> None:
    assert stage.checks.rank_stalled(node, wire.RankStalled(trainer, generation, 12, 30.0, summing=True)) == []


def test_an_examination_is_complete_when_all_have_answered(stage: Examined) -> None:
    stage.stalls()
    assert stage.answers(B, "slow") == stage.answers(D, "lost") == stage.answers(A, "waits") == []
    (event,) = stage.answers(C, "what is this")
    findings = ((A, StallFinding.WAITS), (B, StallFinding.SLOW), (C, StallFinding.UNKNOWN))
    assert event == GroupExamined(T, G, findings)
    stage.post(event)
    assert stage.answers(A, "waits") == []
    assert stage.checks.rank_stalled(A, WAITING) != []


def test_a_member_that_does_not_answer_in_time_is_unknown(stage: Examined) -> None:
    stage.stalls()
    stage.answers(B, "lost")
    assert stage.checks.overdue(EXAMINE_LIMIT_S) == []
    findings = ((A, StallFinding.UNKNOWN), (B, StallFinding.LOST), (C, StallFinding.UNKNOWN))
    assert stage.checks.overdue(EXAMINE_LIMIT_S + 1) == [GroupExamined(T, G, findings)]


def test_an_examination_of_a_group_that_was_dissolved_is_over(stage: Examined) -> None:
    stage.stalls()
    stage.answers(B, "lost")
    stage.post(PoolChanged(lost=(B,)))
    assert stage.pending.examining == {}
    assert stage.answers(A, "waits") == []
    assert stage.checks.overdue(1e9) == []
