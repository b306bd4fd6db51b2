"""The alarm: every so many steps the ranks compare a checksum of what they train. Equal ranks stay equal; if they do
not, a script, a library or a machine has a fault, and all that is trained from there on is worth nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pilot.comm.channel import Gone
from pilot.core.errors import PilotError
from pilot.train.group import RankGroup
from pilot.train.membership import agreed
from pilot.train.step_words import Words

EVERY_STEPS = 100
"""One look at each parameter costs about as much as zeroing it."""

_MODULUS = 65_521
"""The largest prime of 16 bits: sums of squares over 1000 ranks stay exact in float64."""

_AS_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

_MIX = 0x9E3779B97F4A7C15 - (1 << 64)
"""An odd number, as of SplitMix64. A plain sum of bits would not see +x on one number and -x on another."""

_PIECE_NUMBERS = 1 << 20


class Alarm:
    """Of one rank.

    Parameters
    ----------
    named : the parameters that are trained, with their names
    """

    def __init__(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._named = named

    def checksum(self, step: int, size: int) -> int:
        """What this rank says before step ``step`` of ``size`` ranks: 1 to 65521; 0: nothing is compared there."""
        if size == 1 or step % EVERY_STEPS:
            return 0
        number = 0
        for one in self._checksums():
            number = (number * 31 + one) % _MODULUS
        return number + 1

    def compare(self, words: Words, step: int, group: RankGroup, size: int) -> None:
        """With the sums of step ``step``. :class:`PilotError` on all ranks where theirs were not equal."""
        if not words.checksum or agreed(words.checksum, words.checksum_squares, size):
            return
        since = max(step - EVERY_STEPS, 0)
        raise PilotError(
            f"the ranks no longer train the same: {self._first_difference(group)} differs since a step between {since}"
            f" and {step}; look for what the script does on one rank only (if session.rank == 0:, an own generator, a"
            " parameter that it sets), and go on from a checkpoint before that"
        )

    def _checksums(self) -> list[int]:
        sums = [_sum_of(_bits(t.detach())) for _, t in self._named]
        return [int(number) % _MODULUS for number in torch.stack(sums).tolist()]

    def _first_difference(self, group: RankGroup) -> str:
        """Its name, where all ranks still answer."""
        try:
            table = group.gather(self._checksums())
        except Gone:
            return "a parameter"
        columns = zip(self._named, zip(*table, strict=True), strict=True)
        return next((name for (name, _), column in columns if len(set(column)) > 1), "a parameter")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.view(_AS_INTEGERS[real.element_size()])


def _sum_of(bits: torch.Tensor) -> torch.Tensor:
    """Of all numbers, each mixed by itself; modulo 2^64, and in pieces, for it needs room for them."""
    rows = bits if bits.dim() else bits.view(1)
    at_once = max(1, _PIECE_NUMBERS // max(1, rows[:1].numel()))
    pieces = rows.split(at_once)  # type: ignore[no-untyped-call]  # torch has no types for it
    return torch.stack([_mixed(piece).sum() for piece in pieces]).sum()


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    numbers = bits.to(torch.int64) * _MIX
    return numbers ^ (numbers >> 29)
