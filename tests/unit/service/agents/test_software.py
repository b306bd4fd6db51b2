"""Nodes with other versions than most are told."""

from __future__ import annotations

from pilot.core.ids import NodeId
from pilot.service.agents.roster import LINES, VersionsSeen, differences

A, B, C, D, E = map(NodeId, "abcde")
NEW = {"Python": "3.12.3", "torch": "2.9.1", "mpich": "5.0.2"}
OLD = {**NEW, "torch": "2.8.0"}
SO = "sums may differ in their last digits, and a state that one version saves may not load in another"


def test_nodes_that_are_alike_are_not_told() -> None:
    assert differences({}) == []
    assert differences({A: NEW, B: dict(reversed(NEW.items()))}) == []


def test_the_few_that_differ_from_most_are_told_and_in_what() -> None:
    told = differences({A: OLD, B: NEW, C: NEW})
    assert told == [f"a has other versions than most nodes: torch 2.8.0 instead of 2.9.1; {SO}"]
    told = differences({A: OLD, B: NEW, C: NEW, D: NEW, E: OLD})
    assert told == [f"a, e have other versions than most nodes: torch 2.8.0 instead of 2.9.1; {SO}"]


def test_of_two_it_is_the_one_that_came_later() -> None:
    (told,) = differences({A: NEW, B: {"Python": "3.11.2", "torch": "2.9.1"}})
    what = "Python 3.11.2 instead of 3.12.3, mpich none instead of 5.0.2"
    assert told == f"b has other versions than most nodes: {what}; {SO}"


def test_many_differences_are_summed_up() -> None:
    nodes = {NodeId(f"n{i}"): {"torch": str(i // 2 if i < 40 else 99)} for i in range(100)}
    told = differences(nodes)
    assert len(told) == LINES + 1
    assert told[-1] == "n6, n7, n8, n9 and 30 more have other versions than most nodes, too"


def test_only_versions_that_are_new_beside_others_are_logged() -> None:
    seen = VersionsSeen()
    assert [seen.is_another(v) for v in (NEW, NEW, OLD, OLD, NEW)] == [False, False, True, False, False]
    more = [seen.is_another({"torch": str(number)}) for number in range(100)]
    assert sum(more) == LINES - 1
