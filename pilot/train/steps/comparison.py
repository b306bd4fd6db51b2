"""The comparison of gradients in a step in which nodes rehearse (see :mod:`pilot.train.alike.newcomers`), and in the
first step after a resume (see :mod:`pilot.train.alike.next_step`). A rank that differs ends before its gradient counts.
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
    "a value that the script switches in an epoch (if epoch == 3:), counts by itself, draws without a seed, or reads"
    " from its node (files, the environment); a node that computes wrongly. Derive such a value from session.steps,"
    " keep it in session.state, track it, or seed it; if it may differ: pilot resume --accept-changes gradients"
)

_NO_MEAN = "a loss that is not a mean over the samples (pilot check shows that)"


class Comparison:
    """One rank's comparisons. All ranks take part in each; they raise :class:`~pilot.comm.channel.PeerGone` if the
    group breaks meanwhile.

    ``sketch``: adds up the sketches of the current step's gradients, if they are compared; ``training``: has the
    parameters' names, and the changes that the user accepts.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._node = 0
        self.sketch: Sketch | None = None

    def begins(self, rehearsal: Rehearsal | None, rank: int) -> None:
        """Begin a step of ``rank``, with this rehearsal if there is one."""
        self.sketch = Sketch() if rehearsal is not None and rehearsal.is_compared(rank) else None
        self._node = rehearsal.node_of(rank) if rehearsal is not None else 0

    def weighs(self, weight: object) -> None:
        """Set the weight of the current batch's gradients: its number of samples, or the script's weight."""
        if self.sketch is not None:
            self.sketch.weight = float(single(weight))

    def with_others(self, rehearsal: Rehearsal, parameters: Sequence[nn.Parameter], group: RankGroup) -> None:
        """Compare gradients after their sum; :class:`JoinedOtherwise` on the ranks of a node that differs."""
        its = {id(parameter) for parameter in parameters}
        named = {name: one for name, one in self._training.trained.named.items() if id(one) in its}
        own = self.sketch.of(named) if self.sketch is not None else {}
        for sketched in (folded(own), own):  # one per parameter only if they differ: there may be many
            sketches = gather_values(sketched, Sketched, group.gather)
            differences = dict(differences_in(rehearsal, sketches))
            if not differences:
                return
        of_node = [text for rank, text in differences.items() if rehearsal.node_of(rank) == self._node]
        texts = of_node or [*differences.values()]
        also = f" ({len(texts) - 1} more of its ranks differ, too)" if len(texts) > 1 else ""
        difference = f"{texts[0]} from the same samples, random numbers and parameters{also}"
        if self._accepts(difference, group) or not of_node:
            return
        raise JoinedOtherwise(f"{difference}. Possible causes: {_CAUSES}")

    def with_earlier(self, difference: str, group: RankGroup) -> None:
        """Raise :class:`ResumedOtherwise` on all ranks if the leader found a ``difference`` not by design."""
        if difference and group.next_steps.divided_otherwise:
            group.remark(f"{difference}. Possible causes: {_NO_MEAN}; {_CAUSES}")
            difference = ""
        of_leader = gather_values(difference, str, group.gather)[0]
        if of_leader and not self._accepts(of_leader, group):
            raise ResumedOtherwise(f"{of_leader}. Possible causes: {_CAUSES}")

    def _accepts(self, difference: str, group: RankGroup) -> bool:
        """Return whether the user accepts ``difference``; if so, remark it."""
        is_accepted = GRADIENTS in self._training.accepted
        if is_accepted:
            group.remark(f"{difference} (accepted)")
        return is_accepted


def differences_in(rehearsal: Rehearsal, sketches: Sequence[Sketched]) -> Iterator[tuple[int, str]]:
    """Yield each rank whose gradient differs from the one it repeats, with a sentence; ``sketches``: by rank."""
    for rank, own in enumerate(sketches):
        other = rehearsal.stands_for(rank)
        if rank != other and (name := differing(own, sketches[other])):
            yield rank, f"rank {rank} computes another gradient of {name} than rank {other}"
