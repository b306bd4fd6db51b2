"""Examinations of a group: who may request one, who answers it, and what happens if nobody does."""

from __future__ import annotations

import pytest

from pilot.core.commands import ExamineGroup
from pilot.core.coordinator import Coordinator
from pilot.core.events import (
    Event,
    GroupExamined,
    GroupFormed,
    GroupStalled,
    PlanReady,
    PoolChanged,
    StallFinding,
    TrainerSubmitted,
    WorkerReady,
)
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.core.plan.problem import Plan, PlanStatus
from pilot.core.trainer.spec import TrainerSpec
from pilot.protocol import wire
from pilot.service.agents.members import EXAMINE_LIMIT_S, StallChecks
from pilot.service.agents.pending import PendingCommands

T, G = TrainerId("t"), Generation(1)
NODES = (NodeId("n1"), NodeId("n2"), NodeId("n3"))
WAITING = wire.RankStalled("t", 1, 12, 30.0, summing=True)


class Stage:
    """The core with its pending commands: three nodes train one trainer in generation 1, a fourth is free."""

    def __init__(self) -> None:
        self.core, self.pending, self.now_s = Coordinator(), PendingCommands(), 0.0
        self.checks = StallChecks(self.core, self.pending)
        self.post(PoolChanged(joined=(*NODES, NodeId("n4"))))
        self.post(TrainerSubmitted(TrainerSpec(T, 1, 3)))
        self.post(PlanReady(self.core.plan_id, Plan(PlanStatus.OPTIMAL, ((T, 3),), 0.0)))
        for node in NODES:
            self.post(WorkerReady(T, node))
        self.post(GroupFormed(T, G, 0))

    def post(self, event: Event) -> None:
        commands = self.core.handle(self.now_s, event)
        self.pending.note(self.now_s, event, commands)

    def stalled(self) -> None:
        (event,) = self.checks.rank_stalled(NODES[0], WAITING)
        self.post(event)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_the_first_member_that_waits_has_all_looked_at_once(stage: Stage) -> None:
    (event,) = stage.checks.rank_stalled(NODES[0], WAITING)
    assert event == GroupStalled(T, G, "n1 has waited 30.0 s for the sums of step 12", 30.0)
    stage.post(event)
    assert stage.pending.examining[T, G].command == ExamineGroup(T, G, NODES, event.reason, False)
    assert stage.checks.rank_stalled(NODES[1], WAITING) == []


def test_a_wait_between_two_steps_counts_as_one_for_sums(stage: Stage) -> None:
    (event,) = stage.checks.rank_stalled(NODES[0], wire.RankStalled("t", 1, 12, 30.0, summing=False))
    assert event == GroupStalled(T, G, "n1 has waited 30.0 s for the other ranks after step 12", 30.0)
    stage.post(event)
    (seen,) = [e for node in NODES for e in stage.checks.rank_examined(node, wire.RankExamined("t", 1, "waits"))]
    stage.post(seen)
    assert stage.core.trainers[T].group is None, "they waited for one another"


def test_a_newcomer_that_waits_for_the_others_has_its_forming_group_looked_at(stage: Stage) -> None:
    stage.post(TrainerSubmitted(TrainerSpec(TrainerId("other"), 1, 1)))
    stage.post(PlanReady(stage.core.plan_id, Plan(PlanStatus.OPTIMAL, ((T, 2), (TrainerId("other"), 1)), 0.0)))
    forming = stage.core.trainers[T].forming
    assert forming is not None
    waits = wire.RankStalled("t", forming.generation, 12, 30.0, summing=False)
    (left,) = set(NODES) - set(forming.members)
    assert stage.checks.rank_stalled(left, waits) == []
    (event,) = stage.checks.rank_stalled(forming.members[0], waits)
    stage.post(event)
    assert stage.pending.examining[T, forming.generation].command.members == forming.members


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("n4", WAITING),
        ("n1", wire.RankStalled("t", 2, 12, 30.0, summing=True)),
        ("n1", wire.RankStalled("other", 1, 12, 30.0, summing=True)),
    ],
)
def test_who_is_none_of_the_group_is_not_heard(stage: Stage, node: str, message: wire.RankStalled) -> None:
    assert stage.checks.rank_stalled(NodeId(node), message) == []


def test_the_look_is_complete_when_all_have_answered(stage: Stage) -> None:
    stage.stalled()
    assert stage.checks.rank_examined(NODES[1], wire.RankExamined("t", 1, "slow")) == []
    assert stage.checks.rank_examined(NodeId("n4"), wire.RankExamined("t", 1, "lost")) == []
    assert stage.checks.rank_examined(NODES[0], wire.RankExamined("t", 1, "waits")) == []
    (event,) = stage.checks.rank_examined(NODES[2], wire.RankExamined("t", 1, "what is this"))
    assert event == GroupExamined(
        T, G, ((NODES[0], StallFinding.WAITS), (NODES[1], StallFinding.SLOW), (NODES[2], StallFinding.UNKNOWN))
    )
    stage.post(event)
    assert stage.checks.rank_examined(NODES[0], wire.RankExamined("t", 1, "waits")) == []
    assert stage.checks.rank_stalled(NODES[0], WAITING) != []


def test_who_does_not_answer_in_time_is_unknown(stage: Stage) -> None:
    stage.stalled()
    stage.checks.rank_examined(NODES[1], wire.RankExamined("t", 1, "lost"))
    assert stage.checks.overdue(EXAMINE_LIMIT_S) == []
    (event,) = stage.checks.overdue(EXAMINE_LIMIT_S + 1)
    assert event == GroupExamined(
        T, G, ((NODES[0], StallFinding.UNKNOWN), (NODES[1], StallFinding.LOST), (NODES[2], StallFinding.UNKNOWN))
    )


def test_a_look_at_a_group_that_was_dissolved_is_over(stage: Stage) -> None:
    stage.stalled()
    stage.checks.rank_examined(NODES[1], wire.RankExamined("t", 1, "lost"))
    stage.post(PoolChanged(lost=(NODES[1],)))
    assert stage.pending.examining == {}
    assert stage.checks.rank_examined(NODES[0], wire.RankExamined("t", 1, "waits")) == []
    assert stage.checks.overdue(1e9) == []
