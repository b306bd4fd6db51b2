"""What keeps the training processes of a node in step where they compute together.

A process that waits for the next generation computes nothing, and one that computes a forward pass of a sharded model
(or a sum in the node) waits for the others. So it must not happen that one of them has seen that a group broke and the
other has not. Hence the rule: whatever a process does with other nodes (sums, rows, a state, the start of a
generation) it then says to the others of its node whether it came to pass, and it counts only if it did for all. What
is noticed in between (a rank process ended, the group was dissolved) shows at the next such word.

A word is a number: whether something came to pass, or which generation a process could start. Every process says its
next word sooner or later whatever the others say, so nobody waits forever; words of different kinds that meet count as
a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from pilot.comm.channel import Gone
from pilot.comm.fabric import FIRST_NAP_S, longer
from pilot.core.errors import PilotError

_FAILED, _DONE, _GENERATIONS = 0, 1, 2
_Result = TypeVar("_Result")


class NodeTies:
    """Of one training process.

    ``tied``: it computes together with others of its node.

    Parameters
    ----------
    group : a gloo process group of the node's processes; None: it computes by itself
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.tied = group is not None
        self._attend: Callable[[float], None] = lambda _nap_s: None

    def meanwhile(self, attend: Callable[[float], None]) -> None:
        """While it waits for the others ``attend`` is called, with the seconds that it may wait."""
        self._attend = attend

    def together(self, act: Callable[[], _Result]) -> _Result:
        """What ``act`` gives, where it came to pass on all; raises :class:`~pilot.comm.channel.Gone` where it raised
        that on one of them.
        """
        if not self.tied:
            return act()
        try:
            result = act()
        except Gone:
            self.say(_FAILED)
            raise
        if any(word != _DONE for word in self.say(_DONE)):
            raise Gone
        return result

    def same_generation(self, generation: int) -> int:
        """``generation``, where all could start it; else minus the newest that one of them could start."""
        words = self.say(generation + _GENERATIONS)
        return generation if len(set(words)) == 1 else -max(max(words) - _GENERATIONS, 0)

    def say(self, word: int) -> list[int]:
        """What all of them say, by their rank on the node."""
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


def combined(words: Sequence[int], modulus: int) -> int:
    """One number that depends on all of them and on their order."""
    number = 0
    for word in words:
        number = (number * 31 + word) % modulus
    return number
