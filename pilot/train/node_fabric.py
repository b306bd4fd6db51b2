"""How the processes of one node sum among themselves: decided once, by where the model is and what the site says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from pilot.train.membership import Seat
from pilot.train.node_group import STORE, NodeGroup, fabric_of, words_group
from pilot.train.node_ties import NodeTies


@dataclass(frozen=True, slots=True)
class NodeFabric:
    """``group``: sums gradients in the node; None: the rank process does it, in shared memory. ``ties``: see there."""

    group: NodeGroup | None = None
    ties: NodeTies = field(default_factory=NodeTies)

    @classmethod
    def of(cls, environment: Mapping[str, str], seat: Seat, parameters: Sequence[torch.Tensor]) -> NodeFabric:
        """By what the agent says, for a model with these parameters."""
        device = parameters[0].device if parameters else torch.device("cpu")
        fabric = fabric_of(environment, device, seat.size)
        if fabric == "shared-memory":
            return cls()
        store = Path(environment[STORE])
        return cls(NodeGroup(seat, store, fabric), NodeTies(words_group(seat, store)))
