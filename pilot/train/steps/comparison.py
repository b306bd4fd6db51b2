"""The comparison of gradients in a step in which nodes rehearse; see :mod:`pilot.train.alike.newcomers`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from torch import nn

from pilot.comm.channel import Gone
from pilot.train.data.rehearsal import Rehearsal
from pilot.train.gradients.sketch import Sketch, Sketched, differing, folded
from pilot.train.ranks.group import RankGroup
from pilot.train.script import refusal
from pilot.train.state.blocks import gather_blocks
from pilot.train.state.session_checks import single
from pilot.train.state.training import Training

MOST_NOTES = 5
"""By one process: noise of each rank's own differs whenever a node joins."""

_decoder = msgspec.msgpack.Decoder(Sketched)


class Comparison:
    """One rank's comparisons. ``sketch``: of the current step's gradients, if they are compared; ``training``: knows
    the parameters' names.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._notes = 0
        self.sketch: Sketch | None = None

    def begins(self, rehearsal: Rehearsal | None, rank: int) -> None:
        """A step begins, in which these rehearse."""
        self.sketch = Sketch() if rehearsal is not None and rehearsal.is_compared(rank) else None

    def weighs(self, weight: object) -> None:
        """The weight of the current batch's gradients: its samples, or what the script says."""
        if self.sketch is not None:
            self.sketch.weight = float(single(weight))

    def hold(self, rehearsal: Rehearsal, parameters: Sequence[nn.Parameter], group: RankGroup) -> bool:
        """All ranks compare the gradients of these, once their sums have come. False: the group broke meanwhile."""
        its = {id(parameter) for parameter in parameters}
        named = {name: one for name, one in self._training.trained.named.items() if id(one) in its}
        own = self.sketch.of(named) if self.sketch is not None else {}
        differences: list[str] = []
        for sketched in (folded(own), own):  # each parameter's only if they differ: there may be many
            try:
                told = [_decoder.decode(one) for one in gather_blocks(msgspec.msgpack.encode(sketched), group.gather)]
            except Gone:
                return False
            differences = list(differences_in(rehearsal, told))
            if not differences:
                return True
        also = f" ({len(differences) - 1} more differ, too)" if len(differences) > 1 else ""
        self._tell(f"{differences[0]} from the same samples, random numbers and parameters{also}", group)
        return True

    def _tell(self, difference: str, group: RankGroup) -> None:
        if self._notes < MOST_NOTES:
            self._notes += 1
            refusal.note(
                f"{difference}. Possible causes: a value that the script switches in an epoch (if epoch == 3:), counts"
                " by itself, draws without a seed, or has from its node (files, the environment); a node that computes"
                " wrongly. Derive such a value from session.steps, keep it in session.state, track it, or seed it"
                " (unless it is meant to be each rank's own)"
            )
            group.remark(f"{difference}; its log says what to look for")


def differences_in(rehearsal: Rehearsal, told: Sequence[Sketched]) -> Iterator[str]:
    """In words, where a gradient differs from that of the rank that it was to repeat; ``told``: by rank."""
    for rank, own in enumerate(told):
        other = rehearsal.stands_for(rank)
        if rank != other and (name := differing(own, told[other])):
            yield f"rank {rank} computes another gradient of {name} than rank {other}"
