"""Nodes on which pilots fail get none for a while, if pilots join elsewhere."""

from __future__ import annotations

import pytest

from pilot.provisioning.nodes_aside import AGAIN_S, LONGEST_S, NodesAside, Run


def run(node: str, began_s: float, at_s: float, submitted_s: float | None = None) -> Run:
    """A pilot on ``node`` that joined, or failed, at ``at_s``."""
    return Run(frozenset([node]), began_s if submitted_s is None else submitted_s, began_s, at_s, "exit 1")


OLD = [run("n4", -5000, -4990), run("n5", -4000, -3990)]
"""Pilots that joined long ago."""


def test_a_node_on_which_a_pilot_fails_while_others_join_is_set_aside() -> None:
    nodes = NodesAside()
    failed = run("n1", 0, 2)
    assert nodes.judge(10, [run("n2", 0, 5)], [failed]) == ["n1"]
    assert (nodes.explains(failed), nodes.suspects) == (True, False)


def test_that_others_join_may_become_known_later() -> None:
    nodes = NodesAside()
    assert nodes.judge(10, [], [run("n1", 0, 2)]) == []
    assert nodes.suspects
    assert nodes.judge(20, [run("n2", 1, 12)], []) == ["n1"]


def test_what_joined_only_after_all_had_failed_shows_nothing() -> None:
    nodes = NodesAside()
    nodes.judge(10, [], [run("n1", 0, 2), run("n2", 0, 2), run("n3", 0, 2)])
    assert nodes.judge(200, [run("n4", 100, 110)], []) == []


def test_where_nothing_joins_no_node_is_at_fault() -> None:
    nodes = NodesAside()
    for at_s in range(0, 100, 10):
        assert nodes.judge(at_s, [], [run(f"n{at_s % 30}", at_s - 5, at_s)]) == []


def test_pilots_that_fail_on_three_nodes_and_join_nowhere_show_that_it_is_not_the_nodes() -> None:
    nodes = NodesAside()
    assert nodes.judge(10, OLD, [run("n1", 0, 5)]) == ["n1"]
    assert nodes.judge(20, OLD, [run("n2", 10, 15)]) == ["n2"]
    assert nodes.judge(30, OLD, [run("n3", 20, 25)]) == []
    assert not nodes.aside
    assert nodes.judge(40, OLD, [run("n1", 30, 35)]) == []


def test_a_few_sick_nodes_at_a_pools_start_are_all_set_aside() -> None:
    nodes = NodesAside()
    failed = [run(f"n{number}", 0, 1) for number in range(1, 4)]
    assert nodes.judge(30, [run("n4", 0, 5), run("n5", 0, 6)], failed) == ["n1", "n2", "n3"]
    assert nodes.judge(60, [run("n4", 0, 5)], [run("n6", 40, 45)]) == ["n6"]


def test_each_time_is_twice_as_long_until_a_pilot_joins_there() -> None:
    nodes, now_s, lasted = NodesAside(), 0.0, []
    for _ in range(10):
        nodes.judge(now_s, OLD, [run("n1", now_s - 5, now_s)])
        lasted.append(nodes.aside["n1"].until_s - now_s)
        now_s = nodes.aside["n1"].until_s
        nodes.judge(now_s, OLD, [])
        assert not nodes.aside
    assert lasted[:3] == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S]
    assert lasted[-1] == LONGEST_S
    nodes.judge(now_s, OLD, [run("n1", now_s - 5, now_s)])
    nodes.judge(now_s + 1, [*OLD, run("n1", now_s, now_s + 1)], [])
    assert not nodes.aside
    nodes.judge(now_s + 9, OLD, [run("n1", now_s + 3, now_s + 8)])
    assert nodes.aside["n1"].until_s == now_s + 9 + AGAIN_S


def test_a_node_that_is_cleared_is_used_again_and_its_failures_are_forgotten() -> None:
    nodes = NodesAside()
    nodes.judge(10, OLD, [run("n1", 0, 5)])
    assert nodes.clear("n1")
    assert nodes.judge(20, OLD, []) == []
    assert not nodes.clear("n1")


def test_a_pilot_that_was_submitted_before_is_explained_and_a_later_one_is_not() -> None:
    nodes = NodesAside()
    nodes.judge(10, OLD, [run("n1", 0, 5)])
    assert nodes.explains(run("n1", 20, 25, submitted_s=-60))
    assert not nodes.explains(run("n1", 20, 25))
    assert not nodes.explains(Run(frozenset(), 0, 0, 5))


@pytest.mark.parametrize("joins", ["n3", "n2"])
def test_the_nodes_of_one_pilot_share_its_fate(joins: str) -> None:
    nodes = NodesAside(nodes_per_pilot=2)
    failed = Run(frozenset(["n1", "n2"]), 0, 0, 5, "exit 1")
    newly = nodes.judge(10, [Run(frozenset([joins, "n4"]), 0, 0, 6)], [failed])
    assert newly == (["n1", "n2"] if joins == "n3" else ["n1"])
