"""States that go from node to node through process groups."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from pilot.checkpoint import tree
from pilot.train.between.between import Between
from pilot.train.between.process_groups import Gloo
from pilot.train.node.membership import Membership
from pilot.train.node.node_ties import NodeTies
from pilot.train.ranks.state_sharing import StateSharing
from pilot.train.state.state_transfer import Spreading
from tests.between.test_process_groups import SIZE, Members

FROM_0_TO_1 = Spreading(0, (1,), fresh=False)


def sharing(between: Between, training: Any) -> StateSharing:
    unused: Any = None
    return StateSharing("t1", training, unused, unused, unused, unused, unused, unused, NodeTies(), 1, between)


def spread(rank: int, one: Between) -> list[torch.Tensor]:
    """Return the weights that this rank gets."""
    taken: list[torch.Tensor] = []
    training = SimpleNamespace(
        given=lambda **_: tree.encode({"weight": torch.arange(1 << 16)}),
        restore=lambda state, **_: taken.append(state["weight"].clone()),
    )
    sharing(one, training).spread(Membership(7, rank, SIZE), FROM_0_TO_1, 1)
    return taken


def in_memory() -> int:
    """Return the number of open descriptors of shared memory, which keep it even if nothing maps it."""
    return sum("memfd" in str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink())


def test_giving_a_state_keeps_no_copy_of_it() -> None:
    members = Members(partial(Gloo, interface="lo"))
    members.form()
    before = in_memory()
    for _ in range(3):
        _, (taken,), nothing = members.do(spread)
        assert torch.equal(taken, torch.arange(1 << 16))
        assert nothing == []
    assert in_memory() == before
