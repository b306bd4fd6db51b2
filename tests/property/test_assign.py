"""From counts to nodes: valid, without migration, in the pool's node order, whatever the plan."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilot.core.curves.measured import Measured, RescaleCosts, is_rate
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.assign import assign
from pilot.core.plan.problem import Problem
from pilot.core.pool.evidence import SetAside
from pilot.core.pool.pool import NODE_ORDERS, Pool
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Trainer, Worker, WorkerPhase
from pilot.planners import choice, dp
from tests.property.test_planners import curves

PLANS = {"dp": dp.plan, "equal-share": choice.plan}
COSTS = RescaleCosts(5)
Nodes = dict[TrainerId, list[NodeId]]


rates = curves().filter(lambda curve: all(map(is_rate, curve.per_s)))


@st.composite
def trainers(draw: st.DrawFn) -> list[Trainer]:
    made = []
    for number in range(draw(st.integers(1, 4))):
        low = draw(st.integers(1, 4))
        high = draw(st.integers(low, 9))
        sizes = draw(st.sampled_from(((), tuple(n for n in (1, 2, 4, 8) if low <= n <= high))))
        spec = TrainerSpec(TrainerId(f"t{number}"), low, high, draw(rates), fixed_curve=True, sizes=sizes)
        made.append(Trainer(spec, Measured(spec)))
    return made


def settle(pool: Pool, all_trainers: list[Trainer]) -> None:
    """Until the next event: a running trainer holds a state on each of its nodes, a parked one keeps what it has."""
    for trainer in all_trainers:
        if len(trainer.target) >= trainer.spec.min_nodes:
            trainer.workers = {node: Worker(0, WorkerPhase.READY, has_state=True) for node in trainer.target}
        else:
            trainer.workers = {node: worker for node, worker in trainer.workers.items() if node in trainer.target}
    pool.occupant = {node: trainer.id for trainer in all_trainers for node in trainer.workers}


def change(pool: Pool, all_trainers: list[Trainer], joins: list[int], leaves: list[int]) -> None:
    """Nodes come and go, as in a trace."""
    for number in joins:
        pool.join(NodeId(f"n{number}"))
    for number in leaves:
        node = NodeId(f"n{number}")
        owner = pool.owner.get(node)
        if pool.remove(node):
            for trainer in all_trainers:
                trainer.workers.pop(node, None)
                if trainer.id == owner:
                    trainer.target.remove(node)


def targets(all_trainers: list[Trainer]) -> Nodes:
    return {trainer.id: list(trainer.target) for trainer in all_trainers}


def check(pool: Pool, all_trainers: list[Trainer], counts: Mapping[TrainerId, int], before: Nodes) -> None:
    free = {node for node in pool.nodes if node not in [n for nodes in before.values() for n in nodes]}
    given_back = {n for t in all_trainers for n in before[t.id] if n not in t.target}
    handed_out = []
    for trainer in all_trainers:
        held, now = set(before[trainer.id]), set(trainer.target)
        assert len(now) == len(trainer.target)
        assert len(now) == counts[trainer.id] or (counts[trainer.id] == 0 and trainer.parked)
        assert held <= now or now <= held  # it gains or loses nodes, never both (FreeTrain eq. 6)
        assert now - held <= free | given_back
        handed_out += [node for node in trainer.target if node not in held]
    assert {node: t.id for t in all_trainers for node in t.target} == pool.owner
    assert sum(len(t.target) for t in all_trainers) == len(pool.owner) <= len(pool)
    rest = [node for node in pool.nodes if node not in pool.owner]
    assert pool.in_order([*handed_out, *rest])[: len(handed_out)] == handed_out


numbers = st.lists(st.integers(1, 14), max_size=8, unique=True)


@pytest.mark.parametrize("planner", PLANS)
@pytest.mark.parametrize("order", NODE_ORDERS)
@settings(max_examples=200, deadline=None)
@given(made=trainers(), events=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6))
def test_every_assignment_is_valid_and_migrates_nothing(
    planner: str, order: str, made: list[Trainer], events: list[tuple[list[int], list[int]]]
) -> None:
    pool = Pool(NODE_ORDERS[order])
    for joins, leaves in events:
        change(pool, made, joins, leaves)
        candidates = tuple(trainer.candidate(trainer.measured.curve, trainer.room(pool), COSTS) for trainer in made)
        problem, before = Problem(pool.usable, 120.0, candidates), targets(made)
        counts = PLANS[planner](problem).as_dict()
        assert problem.feasible(counts)
        assigned = assign(pool, made, counts)
        changed = assigned.changed
        assert not assigned.short
        assert [t.id for t in made if t not in changed and t.target != before[t.id]] == []
        check(pool, made, counts, before)
        settle(pool, made)


@settings(max_examples=300, deadline=None)
@given(trainers(), st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6), st.lists(numbers, max_size=4))
def test_trainers_exchange_nodes_set_aside(
    made: list[Trainer], events: list[tuple[list[int], list[int]]], shunned: list[list[int]]
) -> None:
    pool = Pool()
    for trainer, aside in zip(made, shunned, strict=False):
        trainer.evidence.aside = {NodeId(f"n{number}"): SetAside(math.inf, "sick") for number in aside}
    for joins, leaves in events:
        change(pool, made, joins, leaves)
        reach = {t.id: t.room(pool) for t in made}
        while True:  # as the coordinator does: asks again within what trainers can have
            candidates = tuple(
                t.candidate(t.measured.curve, reach[t.id], COSTS) for t in made if reach[t.id] >= t.spec.min_nodes
            )
            before, owner = targets(made), dict(pool.owner)
            counts = dp.plan(Problem(pool.usable, 120.0, candidates)).as_dict()
            assigned = assign(pool, made, counts)
            if not assigned.short:
                break
            assert (targets(made), pool.owner) == (before, owner), "what falls short changes nothing"
            assert all(most < counts[t] for t, most in assigned.short.items())
            reach |= assigned.short
        named = [t.id for t in assigned.changed]
        assert [t.id for t in made if t.id not in named and t.target != before[t.id]] == []
        assert len(set(named)) == len(named)
        assert {node: t.id for t in made for node in t.target} == pool.owner
        assert not [(t.id, n) for t in made for n in t.target if n in t.evidence.aside]
        assert not [t.id for t in made if 0 < len(t.target) < t.spec.min_nodes and not t.parked], "nodes idle with it"
        settle(pool, made)
