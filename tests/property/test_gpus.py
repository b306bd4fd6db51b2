"""FLEET's GPU assignment against all orders, alone and through the core's assignment."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilot.core.curves.measured import Measured
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.assign import assign
from pilot.core.pool.pool import Pool
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Trainer
from pilot.research.gpu_packing import GpuNodes


def gpu_nodes(per_node: int) -> GpuNodes:
    return GpuNodes(lambda gpu: int(gpu[1:]) // per_node, per_node)


def assigned(counts: list[int], per_node: int) -> list[list[NodeId]]:
    """On an empty pool with exactly as many nodes as are needed."""
    nodes = gpu_nodes(per_node)
    free = nodes.whole_first([NodeId(f"g{i:03}") for i in range(-(-sum(counts) // per_node) * per_node)])
    return handed_out(counts, nodes.order([[]] * len(counts), counts, free), free)


def handed_out(counts: list[int], order: list[int], free: list[NodeId]) -> list[list[NodeId]]:
    taken: list[list[NodeId]] = [[] for _ in counts]
    for i in order:
        taken[i], free = free[: counts[i]], free[counts[i] :]
    return taken


def total(nodes: GpuNodes, gpus: list[list[NodeId]]) -> int:
    return sum(map(nodes.spread, gpus))


@pytest.mark.parametrize("counts", [[1, 4, 3], [1, 1, 3], [2, 3, 1, 2], [], [8, 4]])
def test_by_hand(counts: list[int]) -> None:
    assert total(gpu_nodes(4), assigned(counts, 4)) == 0


@settings(max_examples=200, deadline=None)
@given(counts=st.lists(st.integers(1, 13), max_size=6), per_node=st.integers(1, 8))
def test_no_order_spans_fewer_nodes(counts: list[int], per_node: int) -> None:
    nodes, gpus = gpu_nodes(per_node), assigned(counts, per_node)
    assert list(map(len, gpus)) == counts
    free = [NodeId(f"g{i:03}") for i in range(-(-sum(counts) // per_node) * per_node)]
    orders = permutations(range(len(counts)))
    assert total(nodes, gpus) == min(total(nodes, handed_out(counts, list(order), free)) for order in orders)


def test_trainers_whose_counts_fill_a_node_share_it() -> None:
    assert total(gpu_nodes(8), assigned([3] * 20 + [5] * 20, 8)) == 0


def test_of_many_trainers_only_some_orders_are_tried() -> None:
    assert total(gpu_nodes(8), assigned([5] * 60, 8)) <= 60


@settings(max_examples=100, deadline=None)
@given(data=st.data(), per_node=st.sampled_from((2, 4)))
def test_in_a_pool_counts_are_kept_and_nothing_migrates(data: st.DataObject, per_node: int) -> None:
    """Plan after plan, whatever is free: all counts are met, and growing trainers keep what they have."""
    pool, nodes = Pool(), gpu_nodes(per_node)
    for i in range(4 * per_node):
        pool.join(NodeId(f"g{i:03}"))
    specs = [TrainerSpec(TrainerId(f"t{i}"), max_nodes=99) for i in range(4)]
    trainers = [Trainer(spec, Measured(spec)) for spec in specs]
    for _ in range(3):
        left, counts = 4 * per_node, {}
        for trainer in trainers:
            counts[trainer.id] = data.draw(st.integers(0, left))
            left -= counts[trainer.id]
        before = {t.id: set(t.target) for t in trainers}
        assign(pool, trainers, counts, nodes)
        for trainer in trainers:
            now = set(trainer.target)
            assert len(trainer.target) == len(now) == counts[trainer.id]
            assert now <= before[trainer.id] or before[trainer.id] <= now
        held = [gpu for trainer in trainers for gpu in trainer.target]
        assert len(held) == len(set(held)) == len(pool.owner)
