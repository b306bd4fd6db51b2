"""A trainer's description of its state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import pytest

from pilot.core.commands import Outcome
from pilot.core.curves.curve import Curve
from pilot.core.curves.measured import Measured, RescaleCosts
from pilot.core.events import CodeLoaded, ExitCause, GroupBroken, GroupFormed, PoolChanged, Progress, WorkerExited
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.core.pool.evidence import SetAside, Stage
from pilot.core.pool.pool import Pool
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import LEAST_LEFT_S, Group, Phase, Trainer, Worker, WorkerPhase
from pilot.core.trainer.transitions import PASSING_BREAKS, note
from tests.property.world import World, generous_plan

SPEC = TrainerSpec(TrainerId("t"), 2, 6)
A, B, C, D, E = map(NodeId, "abcde")


def trainer() -> Trainer:
    return Trainer(SPEC, Measured(SPEC))


def pool(nodes: Iterable[NodeId] = (A, B, C, D)) -> Pool:
    made = Pool()
    for node in nodes:
        made.join(node)
    return made


def test_a_reopened_trainer_forgets_its_failures() -> None:
    ended = trainer()
    ended.outcome, ended.reason, ended.held, ended.stops, ended.refusal = Outcome.FAILED, "why", "spent", True, "edited"
    ended.deaths_in_a_row, ended.died, ended.broken_in_a_row, ended.failed_writes = 3, {A: None}, 5, 4
    ended.reopen()
    assert ended == Trainer(SPEC, ended.measured)
    assert (ended.open, ended.phase) == (True, Phase.QUEUED)


@pytest.mark.parametrize(
    ("target", "holders", "parked"),
    [((A,), (A,), True), ((A,), (), False), ((A,), (B,), False), ((A, B), (A,), False), ((), (), False)],
)
def test_it_is_parked_where_it_holds_a_state_on_fewer_nodes_than_it_can_run_on(
    target: tuple[NodeId, ...], holders: tuple[NodeId, ...], parked: bool
) -> None:
    it = trainer()
    it.target = list(target)
    it.workers = {node: Worker(0, WorkerPhase.READY, has_state=True) for node in holders}
    assert (it.parked, it.refuses_to_grow) == (parked, False)
    it.refusal = "the script was edited"
    assert it.refuses_to_grow == parked


def test_a_plan_leaves_one_that_cannot_grow_as_many_nodes_as_it_has() -> None:
    it = trainer()
    assert it.stays_at() is None
    it.target, it.refusal = [A, B, C], "Traceback\nValueError: the script was edited"
    assert it.stays_at() == (3, "it cannot use further nodes: ValueError: the script was edited")
    value, costs = Curve.of([(1, 1.0), (6, 5.0)]), RescaleCosts(1)
    assert it.candidate(value, 6, costs).max_nodes == 3
    it.target = []
    assert it.candidate(value, 6, costs).max_nodes == SPEC.min_nodes


def test_one_of_several_that_holds_the_state_is_enough_to_be_parked() -> None:
    it = Trainer(spec := TrainerSpec(TrainerId("t"), 3, 6), Measured(spec))
    it.target, it.workers = [A, B], {B: Worker(0, has_state=True)}
    assert it.parked


def test_slow_workers_are_not_awaited() -> None:
    it = trainer()
    it.workers = {
        A: Worker(0),
        B: Worker(0, slow=True),
        C: Worker(0, WorkerPhase.READY),
    }
    assert [it.awaited_on(node) for node in (A, B, C, D)] == [True, False, False, True]


def test_a_group_is_lost_with_the_last_member_that_stays() -> None:
    it, its = trainer(), pool()
    assert not it.lost_all(its, {A}), "it has no group"
    it.group = Group(Generation(1), (A, B))
    its.leave(A, None)
    assert not it.lost_all(its, {A})
    its.remove(B)
    assert it.lost_all(its, {B})
    assert it.lost_all(its, {A, B})
    assert not it.lost_all(its, {C}), "it was lost before"


def test_a_lost_node_ends_its_worker_and_pending_checkpoint() -> None:
    it = trainer()
    it.workers, it.writing = {A: Worker(0), B: Worker(0, alone_s=600.0)}, {A: None, B: None}
    it.lose(A, announced=True)
    assert (it.counts.losses, it.reason, list(it.workers), list(it.writing)) == (0, "", [B], [B])
    it.lose(B, announced=False)
    assert (it.counts.losses, it.workers, it.writing) == (1, {}, {})
    assert it.reason == "; b was lost before its script had ended"


def test_a_state_of_a_node_that_a_new_group_leaves_out_is_old() -> None:
    world = World()
    world.join(4)
    world.submit("t", 2, 4, sizes=(2, 4))
    world.settle()
    it, (a, b, _, d) = world.core.trainers[TrainerId("t")], world.nodes
    world.send(world.worker_dies(it.id, d))
    assert it.forming is not None
    world.send(GroupFormed(it.id, it.forming.generation, 9))
    assert it.holders() == [a, b]


def test_newcomers_do_not_wait_until_a_silent_node_answers() -> None:
    world = World()
    world.join(2)
    world.submit("t", 2, 4)
    world.settle()
    it, (a, b) = world.core.trainers[TrainerId("t")], world.nodes
    world.join(1)
    c = world.nodes[-1]
    while not it.ready_on(c):
        world.complete(0, generous_plan)
    assert it.group is not None
    world.send(GroupBroken(it.id, it.group.generation, "no answer", silent=(b,)))
    assert it.forming is not None
    assert it.forming.members == (a, c)


def test_room_excludes_nodes_set_aside() -> None:
    it, its = trainer(), pool()
    assert it.room(its) == SPEC.max_nodes, "nobody counts where nothing is set aside"
    aside = SetAside(9.0, "it failed")
    it.evidence.aside = {A: aside, B: aside, C: aside, NodeId("gone"): aside}
    assert it.room(its) == 1
    its.leave(A, None)
    assert it.room(its) == 1, "a node that leaves counts for nobody"
    its.aside[B] = aside
    assert it.room(its) == 1, "nor does one that is set aside for all"
    its.join(NodeId("e"))
    assert it.room(its) == 2


def test_the_remaining_work_follows_the_last_report_and_is_never_0() -> None:
    spec = TrainerSpec(TrainerId("t"), curve=Curve.of([(1, 10.0)]), fixed_curve=True, samples=1000.0)
    it = Trainer(spec, Measured(spec), group=Group(Generation(1), (A,)))
    assert it.left_s() == 100.0
    for step, (samples, total, left_s) in enumerate(
        [(200, 600.0, 40.0), (300, None, 30.0), (600, None, LEAST_LEFT_S), (700, 800.0, 10.0)]
    ):
        note(float(step), it, Progress(it.id, Generation(1), step + 1, 0, samples, total_samples=total))
        assert it.left_s() == left_s
    assert trainer().left_s() is None, "nothing is known of its length"


@pytest.mark.parametrize(
    ("members", "unreached", "accused"),
    [
        ("abc", [(B, A), (B, C)], {A: "b", C: "b"}),  # never all that hold the state, which b alone has
        ("abcde", [(E, one) for one in (A, B, C, D)], {E: "a, b, c and 1 more"}),
    ],
)
def test_of_nodes_that_cannot_reach_each_other_the_fewest_are_accused(
    members: str, unreached: list[tuple[NodeId, NodeId]], accused: dict[NodeId, str]
) -> None:
    it = trainer()
    it.broken_in_a_row = PASSING_BREAKS
    it.workers = {NodeId(node): Worker(0, WorkerPhase.READY, has_state=node == "b") for node in members}
    it.forming = Group(Generation(1), tuple(it.workers))
    noted = note(0.0, it, GroupBroken(SPEC.trainer, Generation(1), "not formed", unreached=tuple(unreached)))
    assert noted is not None
    assert {one.node: one.reason for one in noted.accusations} == {
        node: f"through the network it and {others} cannot reach each other" for node, others in accused.items()
    }


@pytest.mark.parametrize(("others", "blamed"), [([], True), ([B], True), ([B, C], False)])
def test_a_node_on_which_it_dies_again_and_again_is_at_fault_unless_it_dies_on_many(
    others: list[NodeId], blamed: bool
) -> None:
    it = trainer()
    it.workers = {node: Worker(0, WorkerPhase.READY, has_state=True) for node in (A, B, C, D)}
    it.group = Group(Generation(1), (A, B, C, D))
    it.evidence.deaths = {A: [0.0, 1.0]} | {node: [0.5] for node in others}
    noted = note(2.0, it, WorkerExited(it.id, A, ExitCause.DIED, "Killed"))
    assert noted is not None
    assert [one.node for one in noted.accusations] == [A] * blamed


@pytest.mark.parametrize(("forming", "while_starting"), [((A, B), False), ((A, C), True), (None, True)])
def test_a_process_that_dies_while_its_group_forms_did_start(
    forming: tuple[NodeId, ...] | None, while_starting: bool
) -> None:
    it = trainer()
    it.workers = {node: Worker(0, WorkerPhase.READY, has_state=node == A) for node in (A, B, C)}
    it.group = Group(Generation(1), (A,))
    it.forming = Group(Generation(2), forming) if forming else None
    noted = note(0.0, it, WorkerExited(it.id, B, ExitCause.DIED, "Killed"))
    assert noted is not None
    assert ([one.stage for one in noted.accusations], it.deaths_in_a_row) == (
        ([Stage.START], 0) if while_starting else ([], 1)
    )


T = TrainerId("t")


def test_rescales_notices_losses_and_deaths_have_separate_counts() -> None:
    world = World()
    world.submit(T, 1, 3)
    counts = world.core.trainers[T].counts
    expected = dict.fromkeys(asdict(counts), 0)
    world.join(1)
    world.settle()
    assert asdict(counts) == expected, "a start is no rescale"
    world.join(2)
    world.settle()
    assert asdict(counts) == (expected := {**expected, "rescales_up": 1})
    world.send(PoolChanged(noticed=(world.nodes[2],), deadline_s=1e9))
    world.settle()
    assert asdict(counts) == (expected := {**expected, "rescales_down": 1, "preemptions": 1})
    world.lose([world.nodes[2]])
    assert asdict(counts) == expected, "its notice was counted"
    world.lose([world.nodes[1]])
    world.settle()
    assert asdict(counts) == (expected := {**expected, "losses": 1})
    world.send(world.worker_dies(T, world.nodes[0]))
    world.settle()
    assert asdict(counts) == {**expected, "worker_deaths": 1}


def test_steps_after_the_loaded_checkpoint_count_as_lost() -> None:
    world = World()
    world.join(1)
    world.submit(T, 1, 1)
    world.settle()
    for _ in range(5):
        world.step(T)
    trainer = world.core.trainers[T]
    world.lose([world.nodes[0]])
    world.join(1)
    while trainer.forming is None:
        world.complete(0, generous_plan)
    world.send(GroupFormed(T, trainer.forming.generation, 3, resumed=3))
    assert (trainer.step, trainer.counts.lost_steps) == (3, 2)


@pytest.mark.parametrize(("after", "up_s", "down_s"), [("abc", 7.0, 10.0), ("bc", 7.0, 10.0), ("b", 20.0, 7.0)])
def test_a_rescale_that_replaces_nodes_counts_as_growing(after: str, up_s: float, down_s: float) -> None:
    spec = TrainerSpec(T)
    trainer = Trainer(spec, Measured(spec), grew=len(after) < 2)
    trainer.workers = {NodeId(node): Worker(0, WorkerPhase.READY) for node in "abc"}
    trainer.group, trainer.forming = (
        Group(Generation(number), tuple(map(NodeId, members))) for number, members in ((1, "ab"), (2, after))
    )
    note(0.0, trainer, GroupFormed(T, Generation(2), 5))
    note(1.0, trainer, Progress(T, Generation(2), 6, 0, 32, rescale_s=7.0))
    assert [trainer.measured.rescale_s(RescaleCosts(5), up=up) for up in (True, False)] == [up_s, down_s]
    assert (trainer.counts.rescales_up, trainer.counts.rescales_down) == (len(after) > 2, len(after) < 2)


@pytest.mark.parametrize("ends", ["not", "its worker", "it stops", "it is closed", "on another node"])
def test_only_workers_that_go_on_have_versions_of_code(ends: str) -> None:
    one, phase = trainer(), WorkerPhase.STOPPING if ends == "its worker" else WorkerPhase.READY
    one.workers[A] = Worker(0, phase)
    one.stops, one.outcome = ends == "it stops", Outcome.FAILED if ends == "it is closed" else None
    noted = note(0.0, one, CodeLoaded(one.id, B if ends == "on another node" else A, (("/lib.py", "1"),)))
    assert (noted is not None, one.code) == ((True, {"/lib.py": "1"}) if ends == "not" else (False, {}))


def test_each_group_that_forms_is_an_interruption_and_nothing_else_is() -> None:
    world = World()
    world.join(1)
    world.submit("t", 1, 3)
    world.settle()
    one = world.core.trainers[TrainerId("t")]
    formed = [now_s for now_s, event, _ in world.history if isinstance(event, GroupFormed)]
    world.step(one.id)
    assert one.interrupted_s == formed[-1] < world.now_s
