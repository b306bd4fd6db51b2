"""Keeps the training processes of a node in step if they compute together.

A process that waits for the next generation computes nothing, while one in a forward pass of a sharded model (or in a
sum within the node) waits for the others. So they must agree on whether a group broke. Hence the rule: after each
operation with other nodes (sums, rows, a state, the start of a generation), the processes of a node exchange whether it
succeeded, and it counts only if it did on all of them. Events in between (a rank process ended, the group was
dissolved) take effect at the next exchange.

They exchange numbers, called words: whether an operation succeeded, or which generation a process could start. Every
process eventually sends its next word, so nobody waits forever; words of different kinds count as a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from pilot.comm.channel import PeerGone
from pilot.comm.naps import FIRST_NAP_S, longer
from pilot.core.errors import MateLost, UserError
from pilot.train.node.devices import check_own
from pilot.train.node.membership import Membership, MembershipState, Seat
from pilot.train.node.node_group import STORE, NodeGroup, Work, fabric_of, gloo_group

_FAILED, _DONE, _GENERATIONS = 0, 1, 2
_Result = TypeVar("_Result")


class NodeTies:
    """The connection to the node's other processes; ``tied``: this one computes together with others."""

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.tied = group is not None
        #: called during waits for the other processes, with the seconds that it may take
        self.attend: Callable[[float], None] = lambda _nap_s: None

    def together(self, act: Callable[[], _Result]) -> _Result:
        """Return the result of ``act``; :class:`PeerGone` if ``act`` raised that on any of the node's processes."""
        if not self.tied:
            return act()
        try:
            result = act()
        except PeerGone:
            self.exchange(_FAILED)
            raise
        if any(word != _DONE for word in self.exchange(_DONE)):
            raise PeerGone
        return result

    def same_generation(self, generation: int) -> int:
        """Return ``generation`` if all processes could start it; otherwise minus the newest that one could start."""
        words = self.exchange(generation + _GENERATIONS)
        return generation if len(set(words)) == 1 else -max(max(words) - _GENERATIONS, 0)

    def exchange(self, word: int) -> list[int]:
        """Send ``word``, and return the words of all processes, by local rank."""
        if not self.tied:
            return [word]
        received = torch.empty(self._group.size(), dtype=torch.int64)
        self._wait(self._group._allgather_base(received, torch.tensor([word])))
        words: list[int] = received.tolist()
        return words

    def sum(self, numbers: torch.Tensor) -> None:
        """Replace ``numbers`` by their sums over all processes."""
        if self.tied:
            self._wait(self._group.allreduce([numbers]))

    def _wait(self, work: Work) -> None:
        nap_s = FIRST_NAP_S
        while not work.is_completed():
            self.attend(nap_s)
            nap_s = longer(nap_s)
        try:
            work.wait()
        except RuntimeError:
            raise MateLost("another training process of this replica has ended") from None


@dataclass
class InForce:
    """The generation in force on a node. Processes that are tied agree on it: ``started`` has the same state on all of
    its ranks, or is None. Otherwise each uses its own ``membership``. ``lose`` is called when a generation is gone.
    """

    membership: MembershipState
    ties: NodeTies
    lose: Callable[[int], None]
    started: Membership | None = None

    @property
    def group(self) -> Membership | None:
        """The generation in force. If the node's processes are tied, it ends only when all of them know that."""
        return self.started if self.ties.tied else self.membership.current

    def check_again(self) -> None:
        """Let this process notice a lost generation by itself, at the end of a script, when nothing is computed."""
        if self.membership.current is None:
            self.started = None

    def next(self, attend: Callable[[], None], ready: Callable[[], bool]) -> int:
        """Wait for the next generation, the same on all tied processes, and return it. ``attend`` waits for events;
        ``ready`` returns whether this process could start a generation.
        """
        newest = 0
        while True:
            membership = self.membership.startable() if ready() else None
            if membership is None or membership.generation < newest:
                attend()
            elif (generation := self.ties.same_generation(membership.generation)) > 0:
                return generation
            else:
                newest = -generation

    def begin(self, generation: int) -> Membership:
        """Start ``generation`` in ``membership``; :class:`~pilot.comm.channel.PeerGone` if it was dissolved."""
        joining = self.membership.joining
        if joining is None or joining.generation != generation:
            raise PeerGone
        return self.membership.start(generation)

    def together(self, group: Membership, act: Callable[[], _Result]) -> _Result:
        """Return the result of ``act``. If it fails on any process of the node, ``group`` is gone."""
        try:
            return self.ties.together(act)
        except PeerGone:
            self.lose(group.generation)
            self.started = None
            raise


def node_fabric(
    environment: Mapping[str, str], seat: Seat, trained: Sequence[torch.Tensor], *, sharded: bool, of_rank_process: bool
) -> tuple[NodeGroup | None, NodeTies]:
    """Return the group that sums gradients within the node, and the ties between its processes, by the agent's
    environment variables and the device of the ``trained`` parameters. Without a group the sums within the node are
    ``of_rank_process``; if it sums nothing, there is a group.
    """
    if seat.size == 1 or STORE not in environment:
        return None, NodeTies()
    check_own(trained, Seat.on_node(environment))
    if seat.nodes > 1 and not sharded:
        raise UserError(
            "--nodes-per-replica is for models that are divided over nodes: call"
            " fully_shard(module, mesh=pilot.train.replica_mesh())"
        )
    store, sums = Path(environment[STORE]), None
    if not sharded:
        fabric = fabric_of(environment, trained[0].device if trained else torch.device("cpu"))
        if fabric == "shared-memory" and not of_rank_process:
            fabric = "gloo"
        if fabric == "shared-memory":
            return None, NodeTies()
        sums = NodeGroup(seat, store, fabric)
    return sums, NodeTies(gloo_group(seat, store, "words"))


def combined(words: Sequence[int], modulus: int) -> int:
    """Return one number that depends on all ``words`` and their order."""
    number = 0
    for word in words:
        number = (number * 31 + word) % modulus
    return number
