"""Short names of nodes, and what they mean."""

from __future__ import annotations

import pytest

from pilot.core.errors import UserError
from pilot.core.ids import NodeId
from pilot.protocol.node_names import find_node, node_of, shortened

N1 = node_of("nid0012", "pilot-1000-fu6bbncn3cnmni6l")
ONE = node_of("gpu-7.cluster.example", "pilot-0-aaaabncn3cnmni6l")
OTHER = node_of("gpu-7.cluster.example", "pilot-0-bbbbbncn3cnmni6l")
POOL = [N1, ONE, OTHER]


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (N1, "nid0012.fu6b"),
        (f"{ONE}, {OTHER} joined", "gpu-7.aaaa, gpu-7.bbbb joined"),
        (f"({N1}): it raised", "(nid0012.fu6b): it raised"),
        (f"its log is /run/logs/{N1}.log", f"its log is /run/logs/{N1}.log"),
        ("n1 and pilot-1000-fu6bbncn3cnmni6l", "n1 and pilot-1000-fu6bbncn3cnmni6l"),
        ("", ""),
    ],
)
def test_texts_name_nodes_in_short_and_paths_stay_whole(text: str, short: str) -> None:
    assert shortened(text) == short


@pytest.mark.parametrize(
    ("name", "meant"),
    [(N1, N1), ("nid0012.fu6b", N1), ("nid0012", N1), ("gpu-7.bbbb", OTHER), (OTHER, OTHER)],
)
def test_a_node_is_found_by_both_of_its_names_and_by_its_host_s(name: str, meant: NodeId) -> None:
    assert find_node(POOL, name) == meant


@pytest.mark.parametrize(
    ("name", "why"),
    [("gpu-7", "'gpu-7' may be any of gpu-7.aaaa, gpu-7.bbbb"), ("nid", "no node named 'nid'"), ("", "no node named")],
)
def test_a_name_of_several_or_of_none_is_refused(name: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        find_node(POOL, name)
