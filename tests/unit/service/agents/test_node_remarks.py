"""Remarks about nodes whose library versions differ from the majority's."""

from __future__ import annotations

import pytest

from pilot.core.ids import NodeId
from pilot.service.agents.node_remarks import LINES_MAX, VersionsSeen, differences

A, B, C, D, E = map(NodeId, "abcde")
NEW = {"Python": "3.12.3", "torch": "2.9.1", "mpich": "5.0.2"}
OLD = {**NEW, "torch": "2.8.0"}
DIFFER = "library versions differ from the pool's majority"
EFFECT = "sums may differ in their last digits, and a state that one version saves may not load in another"


@pytest.mark.parametrize(
    ("installed", "lines"),
    [
        ({}, []),
        ({A: NEW, B: dict(reversed(NEW.items()))}, []),
        ({A: OLD, B: NEW, C: NEW}, [f"a: {DIFFER}: torch 2.8.0 instead of 2.9.1; {EFFECT}"]),
        ({A: OLD, B: NEW, C: NEW, D: NEW, E: OLD}, [f"a, e: {DIFFER}: torch 2.8.0 instead of 2.9.1; {EFFECT}"]),
        (
            {A: NEW, B: {"Python": "3.11.2", "torch": "2.9.1"}},  # of two, the later one
            [f"b: {DIFFER}: Python 3.11.2 instead of 3.12.3, mpich none instead of 5.0.2; {EFFECT}"],
        ),
    ],
)
def test_nodes_whose_versions_differ(installed: dict[NodeId, dict[str, str]], lines: list[str]) -> None:
    assert differences(installed) == lines


def test_many_differences_are_summed_up() -> None:
    lines = differences({NodeId(f"n{i}"): {"torch": str(i // 2 if i < 40 else 99)} for i in range(100)})
    assert len(lines) == LINES_MAX + 1
    assert lines[-1] == f"n6, n7, n8, n9 and 30 more: {DIFFER}, too"


def test_only_versions_that_are_new_beside_others_are_logged() -> None:
    seen = VersionsSeen()
    assert [seen.is_another(v) for v in (NEW, NEW, OLD, OLD, NEW)] == [False, False, True, False, False]
    assert sum(seen.is_another({"torch": str(number)}) for number in range(100)) == LINES_MAX - 1
