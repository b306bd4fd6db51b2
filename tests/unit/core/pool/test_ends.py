"""Free nodes whose end is known: which of them count as ending, and for how long."""

from __future__ import annotations

from pilot.core.ids import NodeId, TrainerId
from pilot.core.pool.pool import MOST, NONE_END, ExpiringNodes, Pool, ending

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


def test_of_many_those_that_leave_first_are_in_a_problem() -> None:
    assert MOST == 8, "docs/planners.md says so"
    pool = pool_of({f"n{number}": 100.0 - number for number in range(MOST + 3)})
    assert ending(pool, NOW_S, T_FWD_S).nodes == tuple(f"n{number}" for number in range(3, MOST + 3))


def test_where_no_end_is_known_none_ends() -> None:
    pool = Pool()
    assert pool.join(NodeId("a"))
    assert ending(pool, NOW_S, T_FWD_S) is NONE_END
