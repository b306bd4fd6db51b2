"""How the processes of one node sum among themselves: decided once, by the model's device and the site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from pilot.train.node.devices import check_own
from pilot.train.node.membership import Seat
from pilot.train.node.node_group import STORE, NodeGroup, fabric_of, gloo_group
from pilot.train.node.node_ties import NodeTies
from pilot.train.state.training import Training


@dataclass(frozen=True, slots=True)
class NodeFabric:
    """``group``: sums gradients within the node; None: the rank process does it, in shared memory. ``ties``: see
    there."""

    group: NodeGroup | None = None
    ties: NodeTies = field(default_factory=NodeTies)

    @classmethod
    def of(cls, environment: Mapping[str, str], seat: Seat, training: Training) -> NodeFabric:
        """Choose according to the agent's environment and to what is trained."""
        if seat.size == 1 or STORE not in environment:
            return cls()
        check_own(training.trained.named.values(), seat)
        store, sums = Path(environment[STORE]), None
        if training.sharding is None:
            device = next((p.device for p in training.trained.named.values()), torch.device("cpu"))
            if (fabric := fabric_of(environment, device)) == "shared-memory":
                return cls()
            sums = NodeGroup(seat, store, fabric)
        return cls(sums, NodeTies(gloo_group(seat, store, "words")))
