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

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from pilot.comm.channel import Gone
from pilot.comm.naps import FIRST_NAP_S, longer
from pilot.core.errors import PilotError

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
        """The result of ``act``, if it succeeded on all; raises :class:`~pilot.comm.channel.Gone` if ``act`` raised
        that on any of them.
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


def combined(words: Sequence[int], modulus: int) -> int:
    """One number that depends on all words and their order."""
    number = 0
    for word in words:
        number = (number * 31 + word) % modulus
    return number
