"""Host patterns: which hosts they match, and what is invalid."""

from __future__ import annotations

import pytest

from pilot.core.errors import UserError
from pilot.site.hostlist import NodePattern


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("n1", ["n1", "n1.cluster.edu"], ["n10", "n2", "an1"]),
        ("n[1-4,7]", ["n1", "n4", "n7"], ["n5", "n04", "n", "n1x"]),
        ("nid[0001-0512]", ["nid0001", "nid0512"], ["nid1", "nid0513", "nid00001"]),
        ("x3001*,x3002c?", ["x3001c0s1", "x3001", "x3002c1"], ["x3002c10", "x3003c0"]),
        ("a[1-2]n[01-18]", ["a1n01", "a2n18"], ["a3n01", "a1n19", "a1n1"]),
    ],
)
def test_hosts_that_match(text: str, inside: list[str], outside: list[str]) -> None:
    pattern = NodePattern.read(text)
    assert [host for host in inside if not pattern.matches(host)] == []
    assert [host for host in outside if pattern.matches(host)] == []


@pytest.mark.parametrize("text", ["", ",", "n[1-", "n[4-1]", "n[a-b]", "n]", "n[]", "n 1", "n(1)"])
def test_malformed_patterns(text: str) -> None:
    with pytest.raises(UserError, match="node pattern"):
        NodePattern.read(text)
