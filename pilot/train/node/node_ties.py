"""Keeps the training processes of a node in step if they compute together.

A process that waits for the next generation computes nothing, while one in a forward pass of a sharded model (or in a
sum within the node) waits for the others. So they must not disagree on whether a group broke. Hence the rule: after
each operation with other nodes (sums, rows, a state, the start of a generation), a process tells the others of its node
whether it succeeded, and it counts only if it did for all. What is noticed in between (a rank process ended, the group
was dissolved) takes effect at the next exchange.

They exchange numbers, called words: whether something succeeded, or which generation a process could start. Every
process eventually sends its next word whatever the others send, so nobody waits forever; if words of different kinds
meet, that counts as a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from pilot.comm.channel import PeerGone
from pilot.comm.naps import FIRST_NAP_S, longer
from pilot.core.errors import PilotError
from pilot.train.node.devices import check_own
from pilot.train.node.membership import Membership, MembershipState, Seat
from pilot.train.node.node_group import STORE, NodeGroup, fabric_of, gloo_group

_FAILED, _DONE, _GENERATIONS = 0, 1, 2
_Result = TypeVar("_Result")


class NodeTies:
    """The ties of one training process, by a gloo process group of the node's processes.

    ``tied``: it computes together with others of its node.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.tied = group is not None
        self._attend: Callable[[float], None] = lambda _nap_s: None

    def meanwhile(self, attend: Callable[[float], None]) -> None:
        """Call ``attend`` while waiting for the others, with the seconds that it may take."""
        self._attend = attend

    def together(self, act: Callable[[], _Result]) -> _Result:
        """The result of ``act``, if it succeeded on all; raises :class:`~pilot.comm.channel.PeerGone` if ``act`` raised
        that on any of them.
        """
        if not self.tied:
            return act()
        try:
            result = act()
        except PeerGone:
            self.say(_FAILED)
            raise
        if any(word != _DONE for word in self.say(_DONE)):
            raise PeerGone
        return result

    def same_generation(self, generation: int) -> int:
        """``generation``, if all could start it; otherwise minus the newest that one of them could start."""
        words = self.say(generation + _GENERATIONS)
        return generation if len(set(words)) == 1 else -max(max(words) - _GENERATIONS, 0)

    def say(self, word: int) -> list[int]:
        """Send ``word``; returns the words of all, by local rank."""
        if not self.tied:
            return [word]
        said = torch.empty(self._group.size(), dtype=torch.int64)
        work, nap_s = self._group._allgather_base(said, torch.tensor([word])), FIRST_NAP_S
        while not work.is_completed():
            self._attend(nap_s)
            nap_s = longer(nap_s)
        try:
            work.wait()
        except RuntimeError:
            raise PilotError("another training process of this node has ended") from None
        words: list[int] = said.tolist()
        return words


@dataclass
class InForce:
    """Which generation is in force on a node: what each of its processes knows, and what they agree on if they are
    tied. ``membership``: what this one knows; ``lose`` is called when a generation is gone.
    """

    membership: MembershipState
    ties: NodeTies
    lose: Callable[[int], None]
    _started: Membership | None = None

    @property
    def group(self) -> Membership | None:
        """The generation in force. If the node's processes are tied, it counts as gone only once all of them know."""
        return self._started if self.ties.tied else self.membership.current

    def started(self, group: Membership) -> None:
        """``group`` is in force, with the same state on all of its ranks."""
        self._started = group

    def ended(self) -> None:
        """No generation is in force any more."""
        self._started = None

    def check_again(self) -> None:
        """At the end of a script, when nothing is computed any more, each process checks for itself."""
        if self.membership.current is None:
            self._started = None

    def next(self, attend: Callable[[], None], ready: Callable[[], bool]) -> int:
        """Wait for the generation to start, the same on all tied processes. ``attend`` waits for events; ``ready``:
        whether this process could start one.
        """
        newest = 0
        while True:
            membership = self.membership.startable() if ready() else None
            if membership is None or membership.generation < newest:
                attend()
            elif (said := self.ties.same_generation(membership.generation)) > 0:
                return said
            else:
                newest = -said

    def begin(self, generation: int) -> Membership:
        """Start ``generation``; :class:`~pilot.comm.channel.PeerGone` if it was dissolved meanwhile."""
        joining = self.membership.joining
        if joining is None or joining.generation != generation:
            raise PeerGone
        return self.membership.start(generation)

    def together(self, group: Membership, act: Callable[[], _Result]) -> _Result:
        """The result of ``act``. If it does not succeed on all processes of the node, ``group`` is gone."""
        try:
            return self.ties.together(act)
        except PeerGone:
            self.lose(group.generation)
            self._started = None
            raise


@dataclass(frozen=True, slots=True)
class NodeFabric:
    """How the processes of one node sum among themselves. ``group``: sums gradients within the node; None: the rank
    process does it, in shared memory.
    """

    group: NodeGroup | None = None
    ties: NodeTies = field(default_factory=NodeTies)

    @classmethod
    def of(
        cls, environment: Mapping[str, str], seat: Seat, trained: Sequence[torch.Tensor], *, sharded: bool
    ) -> NodeFabric:
        """Choose according to the agent's environment and to what is trained: once, by its device and the site."""
        if seat.size == 1 or STORE not in environment:
            return cls()
        check_own(trained, seat)
        store, sums = Path(environment[STORE]), None
        if not sharded:
            fabric = fabric_of(environment, trained[0].device if trained else torch.device("cpu"))
            if fabric == "shared-memory":
                return cls()
            sums = NodeGroup(seat, store, fabric)
        return cls(sums, NodeTies(gloo_group(seat, store, "words")))


def combined(words: Sequence[int], modulus: int) -> int:
    """One number that depends on all words and their order."""
    number = 0
    for word in words:
        number = (number * 31 + word) % modulus
    return number
