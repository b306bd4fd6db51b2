"""Training processes of a replica of several nodes: their places, and what is refused."""

from __future__ import annotations

import pytest
import torch

from pilot.core.errors import MATE_LOST_STATUS, UserError
from pilot.train.between.between import between_nodes
from pilot.train.node.devices import exit_status
from pilot.train.node.membership import Seat
from pilot.train.node.node_group import node_mesh
from pilot.train.node.node_ties import node_fabric

VARIABLES = {
    "PILOT_LOCAL_RANK": "1",
    "PILOT_LOCAL_SIZE": "2",
    "PILOT_REPLICA_PLACE": "2",
    "PILOT_REPLICA_NODES": "3",
    "PILOT_NODE_STORE": "unused",
}
TRAINED = [torch.zeros(1)]


def test_ranks_are_numbered_replica_by_replica() -> None:
    seat = Seat.of(VARIABLES)
    assert (seat.rank, seat.size, Seat.on_node(VARIABLES)) == (5, 6, Seat(1, 2))
    member = seat.member(7, node=5, nodes=6)
    assert (member.rank, member.size) == (11, 12)
    assert Seat.of({}) == Seat(0, 1, 1)


def test_what_a_replica_of_several_nodes_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    seat = Seat.of(VARIABLES)
    with pytest.raises(UserError, match="replica_mesh"):
        node_fabric(VARIABLES, seat, TRAINED, sharded=False, of_rank_process=False)
    for variables, in_rounds in ((VARIABLES, False), (VARIABLES | {"PILOT_BETWEEN_NODES": "gloo"}, True)):
        with pytest.raises(UserError, match="gloo or nccl, and no sync="):
            between_nodes(variables, seat, TRAINED, in_rounds=in_rounds)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="use pilot"):
        node_mesh()


def test_a_lost_mate_is_not_an_error_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")
    assert exit_status(lost) == 1
    monkeypatch.setenv("PILOT_REPLICA_NODES", "2")
    assert exit_status(lost) == MATE_LOST_STATUS
    assert exit_status(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) == 1
