"""The comparison of gradients in a step in which nodes rehearse (see :mod:`pilot.train.alike.newcomers`), and in the
first one after a resume (see :mod:`pilot.train.alike.next_step`). Who differs ends, before its gradient counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from pilot.core.errors import JoinedOtherwise, ResumedOtherwise
from pilot.protocol.run_identity import GRADIENTS
from pilot.train.data.rehearsal import Rehearsal
from pilot.train.gradients.sketch import Sketch, Sketched, differing, folded
from pilot.train.ranks.group import RankGroup
from pilot.train.state.block import gather_values
from pilot.train.state.session_checks import single
from pilot.train.state.training import Training

_CAUSES = (
    "a value that the script switches in an epoch (if epoch == 3:), counts by itself, draws without a seed, or has from"
    " its node (files, the environment); a node that computes wrongly. Derive such a value from session.steps, keep it"
    " in session.state, track it, or seed it; if it is meant to differ: pilot resume --accept-changes gradients"
)

_NO_MEAN = "a loss that is no mean over the samples (pilot check shows that)"


class Comparison:
    """One rank's comparisons. All ranks take part in each; they raise :class:`~pilot.comm.channel.PeerGone` if the
    group breaks meanwhile.

    ``sketch``: of the current step's gradients, if they are compared; ``training``: knows the parameters' names, and
    what the user accepts.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._node = 0
        self.sketch: Sketch | None = None

    def begins(self, rehearsal: Rehearsal | None, rank: int) -> None:
        """A step begins, in which these rehearse."""
        self.sketch = Sketch() if rehearsal is not None and rehearsal.is_compared(rank) else None
        self._node = rehearsal.node_of(rank) if rehearsal is not None else 0

    def weighs(self, weight: object) -> None:
        """The weight of the current batch's gradients: its samples, or what the script says."""
        if self.sketch is not None:
            self.sketch.weight = float(single(weight))

    def with_others(self, rehearsal: Rehearsal, parameters: Sequence[nn.Parameter], group: RankGroup) -> None:
        """Compare the gradients of these, once their sums have come: :class:`JoinedOtherwise` on the ranks of a node
        that rehearses, if one of them differs.
        """
        its = {id(parameter) for parameter in parameters}
        named = {name: one for name, one in self._training.trained.named.items() if id(one) in its}
        own = self.sketch.of(named) if self.sketch is not None else {}
        for sketched in (folded(own), own):  # each parameter's only if they differ: there may be many
            told = gather_values(sketched, Sketched, group.gather)
            differences = dict(differences_in(rehearsal, told))
            if not differences:
                return
        of_node = [text for rank, text in differences.items() if rehearsal.node_of(rank) == self._node]
        said = of_node or [*differences.values()]
        also = f" ({len(said) - 1} more of its ranks differ, too)" if len(said) > 1 else ""
        difference = f"{said[0]} from the same samples, random numbers and parameters{also}"
        if self._accepts(difference, group) or not of_node:
            return
        raise JoinedOtherwise(f"{difference}. Possible causes: {_CAUSES}")

    def with_earlier(self, difference: str, group: RankGroup) -> None:
        """After a resume: :class:`ResumedOtherwise` on all ranks, if the leader found a ``difference`` that is not by
        design.
        """
        if difference and group.next_steps.divided_otherwise:
            group.remark(f"{difference}. Possible causes: {_NO_MEAN}; {_CAUSES}")
            difference = ""
        told = gather_values(difference, str, group.gather)[0]
        if told and not self._accepts(told, group):
            raise ResumedOtherwise(f"{told}. Possible causes: {_CAUSES}")

    def _accepts(self, difference: str, group: RankGroup) -> bool:
        """Whether the user accepts it; then it is remarked."""
        is_accepted = GRADIENTS in self._training.accepted
        if is_accepted:
            group.remark(f"{difference} (accepted)")
        return is_accepted


def differences_in(rehearsal: Rehearsal, told: Sequence[Sketched]) -> Iterator[tuple[int, str]]:
    """The ranks whose gradient differs from that of the rank that they were to repeat, and how, in words; ``told``: by
    rank.
    """
    for rank, own in enumerate(told):
        other = rehearsal.stands_for(rank)
        if rank != other and (name := differing(own, told[other])):
            yield rank, f"rank {rank} computes another gradient of {name} than rank {other}"
