"""A parked trainer keeps the nodes that nobody else needs; who gets and gives back nodes that leave soon."""

from __future__ import annotations

import pytest

from pilot.core.curves.measured import Measured
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.assign import assign, start_on
from pilot.core.pool.evidence import SetAside
from pilot.core.pool.pool import ExpiringNodes, Pool, ending
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Trainer, Worker, WorkerPhase

X, Y, Z = map(NodeId, "xyz")
SOON, LATER, T_FWD_S = 50.0, 500.0, 120.0


def pool_of(ends: dict[str, float]) -> Pool:
    """A pool of nodes with these ``ends`` at time 0."""
    pool = Pool()
    for node, at_s in ends.items():
        pool.join(NodeId(node))
        pool.know_end(NodeId(node), at_s)
    return pool


def trainer_of(pool: Pool, name: str, *nodes: str, least: int = 1) -> Trainer:
    """A trainer whose target is ``nodes``; no worker has started yet."""
    trainer = Trainer(spec := TrainerSpec(TrainerId(name), least, 4), Measured(spec))
    trainer.target = [NodeId(node) for node in nodes]
    pool.owner |= dict.fromkeys(trainer.target, trainer.id)
    return trainer


def test_a_free_usable_node_spares_a_parked_trainers_nodes() -> None:
    parked, choosy = (
        Trainer(spec := TrainerSpec(TrainerId(name), low, 4), Measured(spec)) for name, low in (("parked", 2), ("g", 1))
    )
    for free, kept in (((Y,), [X]), ((), [])):
        pool = Pool()
        for node in (X, *free):
            pool.join(node)
        pool.owner[X] = pool.occupant[X] = parked.id
        parked.target, parked.workers = [X], {X: Worker(0, WorkerPhase.READY, has_state=True)}
        choosy.target, choosy.evidence.aside = [], {Z: SetAside(9.0, "it failed")}
        assign(pool, [parked, choosy], {parked.id: 0, choosy.id: 1})
        assert (parked.target, choosy.target) == (kept, [*free] or [X])


@pytest.mark.parametrize(("with_state", "kept"), [("xy", [X]), ("y", [])])
def test_a_parked_trainer_gives_the_node_that_another_can_use(with_state: str, kept: list[NodeId]) -> None:
    """It keeps no others if its state went with that node."""
    pool = pool_of(dict.fromkeys("zxy", 9e9))
    parked, choosy = trainer_of(pool, "parked", "x", "y", least=3), trainer_of(pool, "choosy")
    parked.workers = {NodeId(node): Worker(0, WorkerPhase.READY, has_state=True) for node in with_state}
    choosy.evidence.aside = dict.fromkeys((X, Z), SetAside(9.0, "it failed"))
    assign(pool, [parked, choosy], {parked.id: 0, choosy.id: 1})
    assert (parked.target, choosy.target) == (kept, [Y])


def test_a_parked_trainer_gives_the_last_missing_node() -> None:
    pool = pool_of(dict.fromkeys("xy", 9e9))
    parked, choosy, other = trainer_of(pool, "parked", "x", least=2), trainer_of(pool, "a"), trainer_of(pool, "b")
    parked.workers = {X: Worker(0, WorkerPhase.READY, has_state=True)}
    choosy.evidence.aside = {X: SetAside(9.0, "it failed")}
    assign(pool, [parked, choosy, other], {parked.id: 0, choosy.id: 1, other.id: 1})
    assert (parked.target, choosy.target, other.target) == ([], [Y], [X])


@pytest.mark.parametrize("soon", ["a", "b"])
def test_a_parked_trainer_keeps_its_ending_node(soon: str) -> None:
    """It keeps the one that ends soon: nobody pays for a rescale onto that."""
    pool = pool_of({node: SOON if node == soon else LATER for node in "ab"})
    parked, taker = trainer_of(pool, "parked", *"ab", least=3), trainer_of(pool, "taker")
    parked.workers = {node: Worker(0, WorkerPhase.READY, has_state=True) for node in parked.target}
    assign(pool, [parked, taker], {parked.id: 0, taker.id: 1}, ending=ending(pool, 0.0, T_FWD_S))
    assert (parked.target, soon in taker.target) == ([soon], False)


@pytest.mark.parametrize("soon", ["a", "b", "c"])
def test_an_ending_node_stays_with_its_trainer_unless_nobody_grows(soon: str) -> None:
    """For a node that leaves within T, any trainer that gets it would pay for one rescale up and one down."""
    ends = {node: SOON if node == soon else LATER for node in "abc"}
    pool = pool_of(ends)
    giver, taker = trainer_of(pool, "giver", *"abc"), trainer_of(pool, "taker")
    until = ending(pool, 0.0, T_FWD_S)
    assert until == ExpiringNodes((), 0.0, T_FWD_S), "held nodes are not classed"
    assign(pool, [giver, taker], {giver.id: 1, taker.id: 2}, ending=until)
    assert giver.target == [soon] and soon not in taker.target
    pool = pool_of(ends)
    giver = trainer_of(pool, "giver", *"abc")
    assign(pool, [giver], {giver.id: 2}, ending=ending(pool, 0.0, T_FWD_S))
    assert soon not in giver.target and len(giver.target) == 2


@pytest.mark.parametrize(
    ("own", "got"),
    [
        ("", [{"b", "c", "e"}, {"a", "d"}]),  # a group that fits as a whole, before part of one and before single nodes
        ("p", [{"p", "a", "d", "f"}, {"b", "c"}]),  # those that leave with its own nodes, and then a group of one
        ("q", [{"q", "b", "c", "e"}, {"a", "d"}]),
    ],
)
def test_a_growing_trainer_gets_nodes_that_leave_together(own: str, got: list[set[str]]) -> None:
    """A trainer pays for a rescale each time it loses nodes, however many."""
    ends = {"a": 600.0, "b": 700.0, "c": 700.0, "d": 600.0, "e": 700.0, "f": 500.0}
    pool = pool_of(ends | {node: at_s for node, at_s in {"p": 600.0, "q": 700.0}.items() if node == own})
    first, second = trainer_of(pool, "first", *own), trainer_of(pool, "second")
    counts = {first.id: 3 + len(own), second.id: 2}
    assign(pool, [first, second], counts, ending=ending(pool, 0.0, T_FWD_S))
    assert [set(first.target), set(second.target)] == got


def test_nodes_that_stay_longest_are_taken_first() -> None:
    pool = pool_of({"a": 600.0, "b": 800.0, "c": 700.0})
    trainer = trainer_of(pool, "t")
    assign(pool, [trainer], {trainer.id: 2}, ending=ending(pool, 0.0, T_FWD_S))
    assert set(trainer.target) == {"b", "c"}


def test_a_trial_starts_on_nodes_that_stay() -> None:
    pool = pool_of({"a": SOON, "b": LATER, "c": LATER})
    for want, got in ((1, {"b"}), (2, {"b", "c"}), (3, {"a", "b", "c"})):
        trial = trainer_of(pool, "trial")
        start_on(pool, trial, want, ending(pool, 0.0, T_FWD_S))
        assert set(trial.target) == got
        pool.owner.clear()


def test_a_trial_does_not_start_on_fewer_nodes_than_it_needs() -> None:
    pool = pool_of(dict.fromkeys("abc", 9e9))
    trial = trainer_of(pool, "trial", least=3)
    trial.evidence.aside = {NodeId("a"): SetAside(9.0, "it failed")}
    start_on(pool, trial, 3)
    assert (trial.target, pool.owner) == ([], {})
