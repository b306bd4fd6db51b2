"""The process groups within a replica of several nodes. Its training processes start and end together, so these groups
live as long as the processes. Addresses go through the agents and the coordinator.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

from pilot.core.errors import MateLost
from pilot.protocol import wire
from pilot.train.node.forming import Forming, Store
from pilot.train.node.sockets import WorkerEvent, worker_sockets

REPEAT_S = 1.0
"""Addresses are sent again after this time: the coordinator keeps none for mates that are not there yet."""
_NAP_S = 0.05


def formed(name: str, make: Callable[[Store], Any]) -> Any:
    """Return the group that ``make`` returns when all mates have called this with the same ``name``; :class:`MateLost`
    if it cannot form. Until then messages of the agent are kept for the session.
    """

    def together(store: Store) -> Any:
        group = make(store)
        group.allreduce([torch.zeros(1)]).wait()  # a mate may need our addresses though we are connected
        return group

    link, trainer, replica = worker_sockets(os.environ), os.environ["PILOT_TRAINER"], int(os.environ["PILOT_REPLICA"])
    forming, own, again_s = Forming(together), dict[str, bytes](), 0.0
    others: list[WorkerEvent] = []
    while not forming.is_over:
        new = {f"{name}/{key}": value for key, value in forming.new().items()}
        own |= new
        if new or (own and time.monotonic() >= again_s):
            link.send(wire.ReplicaAddresses(trainer, replica, own))
            again_s = time.monotonic() + REPEAT_S
        for event in link.wait(_NAP_S):
            if not isinstance(event, wire.ReplicaAddresses):
                others.append(event)
                continue
            values = ((key.partition("/"), value) for key, value in event.values.items())
            forming.introduce({key: value for (of, _, key), value in values if of == name})
    link.keep(others)
    if forming.group is None:
        raise MateLost(f"the processes of this replica cannot connect: {forming.error}")
    return forming.group
