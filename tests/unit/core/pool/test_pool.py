"""The nodes of a pool: a name that comes back is a new node."""

from __future__ import annotations

from pilot.core.ids import NodeId, TrainerId
from pilot.core.pool.evidence import SetAside
from pilot.core.pool.pool import MOST, NONE_END, ExpiringNodes, Pool, ending, join_order

A, B = NodeId("a"), NodeId("b")
T = TrainerId("t")


def test_a_node_that_returns_under_its_name_is_new() -> None:
    pool = Pool(join_order)
    assert pool.join(A) and pool.join(B) and not pool.join(A)
    pool.owner[A] = pool.occupant[A] = T
    pool.aside[A] = SetAside(9.0, "it failed")
    assert (pool.available(), pool.usable) == ([B], 2)
    assert pool.leave(A, 5.0) and not pool.leave(A, None)
    assert (pool.leaving, pool.owner, pool.occupant, pool.usable) == ({A: 5.0}, {}, {A: T}, 1)
    assert pool.remove(A) and not pool.remove(A) and not pool.leave(A, 5.0)
    assert (pool.leaving, pool.aside, pool.occupant, len(pool)) == ({}, {}, {}, 1)
    assert pool.join(A)
    assert (pool.available(), pool.nodes, pool.usable) == ([B, A], [B, A], 2), "it joined later"


def test_a_node_set_aside_is_usable_while_it_has_an_owner() -> None:
    pool = Pool()
    for node in (A, B):
        pool.join(node)
    pool.owner[A], pool.aside[A] = T, SetAside(9.0, "it failed")
    assert (pool.usable, pool.available(), pool.is_free(A)) == (2, [B], False)
    assert pool.remove(B)
    pool.owner[A] = T
    assert pool.remove(A)
    assert (pool.owner, pool.usable) == ({}, 0)


def test_a_busy_node_is_of_no_use_until_it_is_free() -> None:
    pool = Pool()
    assert pool.join(A) and pool.join(B)
    pool.busy[A] = None
    assert (pool.usable, pool.available(), pool.is_free(A)) == (1, [B], False)
    pool.aside[A] = SetAside(9.0, "it failed")
    assert (pool.leave(A, None), pool.usable) == (True, 1), "it counts once"
    assert not pool.free(A), "it leaves"
    pool.busy[B] = None
    assert (pool.free(B), pool.free(B), pool.usable) == (True, False, 1)


def test_an_end_is_before_a_time_if_it_is_known_and_earlier() -> None:
    pool = Pool()
    assert pool.join(A) and pool.join(B)
    pool.know_end(A, 60.0)
    assert [pool.ends_before(A, at_s) for at_s in (59.0, 60.0, 61.0)] == [False, False, True]
    assert not pool.ends_before(B, 1e9)
    pool.know_end(A, None)
    assert not pool.ends_before(A, 1e9)


NOW_S, T_FWD_S = 1000.0, 120.0


def pool_of(ends: dict[str, float]) -> Pool:
    """A pool of these nodes, which leave so many seconds from now."""
    pool = Pool()
    for node, in_s in ends.items():
        pool.join(NodeId(node))
        pool.know_end(NodeId(node), NOW_S + in_s)
    return pool


def test_they_count_for_the_mean_time_that_they_have_left_and_the_last_to_leave_comes_first() -> None:
    pool = pool_of({"a": 30.0, "b": 119.0, "c": 120.0, "d": 500.0})
    assert ending(pool, NOW_S, T_FWD_S) == ExpiringNodes((NodeId("b"), NodeId("a")), 74.5, NOW_S + T_FWD_S)
    pool.owner[NodeId("b")] = TrainerId("t")
    assert ending(pool, NOW_S, T_FWD_S).nodes == ("a",), "it was paid for"


def test_one_that_should_be_gone_has_no_time_left() -> None:
    pool = pool_of({"late": -500.0, "a": 0.5})
    assert ending(pool, NOW_S, T_FWD_S).left_s == 0.25


def test_at_most_eight_ending_nodes_count_the_first_to_leave() -> None:
    assert MOST == 8, "docs/how/planners.md says so"
    pool = pool_of({f"n{number}": 100.0 - number for number in range(MOST + 3)})
    assert ending(pool, NOW_S, T_FWD_S).nodes == tuple(f"n{number}" for number in range(3, MOST + 3))


def test_where_no_end_is_known_none_ends() -> None:
    pool = Pool()
    assert pool.join(NodeId("a"))
    assert ending(pool, NOW_S, T_FWD_S) is NONE_END
