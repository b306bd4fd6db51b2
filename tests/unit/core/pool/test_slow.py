"""When a node counts as slow, and when no longer."""

from __future__ import annotations

from pilot.core.commands import MarkNodeSlow
from pilot.core.ids import NodeId, TrainerId
from pilot.core.node_types import judge
from pilot.core.pool.node_type import NodeType, SlowNode
from pilot.core.pool.pool import Pool

T, N = TrainerId("t"), NodeId("n")


def judged(*shares: tuple[float, float], pool: Pool | None = None) -> list[tuple[float, str]]:
    """When what is said of the node, which does these shares of what its type does at these times."""
    pool, said = pool if pool is not None else Pool(), []
    pool.join(N)
    pool.know_type(N, NodeType("a40"))
    for now_s, share in shares:
        said += [(now_s, command.reason) for command in judge(now_s, pool, T, {N: share})]
    return said


def every_30_s(start_s: float, times: int, share: float) -> list[tuple[float, float]]:
    return [(start_s + 30.0 * i, share) for i in range(times)]


def test_a_node_counts_as_slow_after_two_minutes_and_no_longer_after_two_more() -> None:
    pool = Pool()
    said = judged(*every_30_s(0, 10, 0.5), *every_30_s(300, 10, 0.9), pool=pool)
    assert said == [
        (120.0, "n counts as slow: it does 50% of what a40 nodes do for t"),
        (420.0, "n no longer counts as slow: it does 90% of what a40 nodes do for t"),
    ]
    assert pool.slow == {}


def test_it_is_a_type_of_its_own_and_is_forgotten_with_its_node() -> None:
    pool = Pool()
    judged(*every_30_s(0, 5, 0.7), pool=pool)
    assert pool.slow == {N: SlowNode(120.0, 0.7, T)}
    assert pool.kind_of(N) == "a40/slow"
    judge(150.0, pool, T, {N: 0.8})
    pool.remove(N)
    assert pool.slow == pool.contradicted == {}


def test_one_good_measurement_or_a_long_gap_begins_anew() -> None:
    assert judged(*every_30_s(0, 4, 0.5), (120.0, 0.76), *every_30_s(150, 4, 0.5)) == []
    assert judged((0.0, 0.5), (110.0, 0.5), (231.0, 0.5)) == []
    assert judged(*every_30_s(0, 20, 0.75)) == []


def test_the_command_says_which_way() -> None:
    pool = Pool()
    pool.join(N)
    for now_s, share in every_30_s(0, 5, 0.5):
        out = judge(now_s, pool, T, {N: share})
    assert out == [MarkNodeSlow(N, True, "n counts as slow: it does 50% of what other nodes do for t")]
