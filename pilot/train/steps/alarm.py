"""The alarm: at intervals the ranks compare checksums of what must be the same on all of them. Identical ranks stay
identical; if not, a script, a library or a machine is faulty, and training from there on is worthless.

The comparison is part of a step's sums (one number per rank, see :mod:`pilot.train.gradients.step_words`). Only if it
fails do the ranks gather a checksum per tensor, to see whether the difference is in a buffer that belongs to each rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from pilot.checkpoint.checksums import MODULUS
from pilot.comm.channel import PeerGone
from pilot.core.errors import PilotError
from pilot.train.alike.replicated import OWN, Numbers, Replicated
from pilot.train.gradients.step_words import Words
from pilot.train.node.membership import Membership, agreed
from pilot.train.node.node_ties import NodeTies, combined
from pilot.train.ranks.group import RankGroup
from pilot.train.state.block import gather_values
from pilot.train.state.training import Training

EVERY_STEPS = 100
"""A check reads each tensor once; a step does so several times. See ``benchmarks.guards``."""
FIRST_STEPS = (1, 10)
"""Most faults of a script show early."""

_Told = tuple[int, Numbers]
"""One rank's last step in which the ranks agreed, and its checksums."""


class Alarm:
    """One rank's alarm; ``held`` is told when the script computes. ``ties``: to the other processes of the node."""

    def __init__(self, training: Training, ties: NodeTies) -> None:
        self._training = training
        self._ties = ties
        self._shards = training.shards
        self.held = Replicated(training)
        self._numbers: Numbers = {}
        self._generation: int | None = None

    def checksum(self, step: int, group: Membership, *, is_last: bool = False) -> int:
        """This rank's checksum before step ``step`` of its group: 1 to 65521; 0: no comparison in this step. There is
        one in a group's first step, because newcomers may behave differently (such as a learning rate by the script's
        own counter), and in the training's last, so that no difference between two others stays unseen.
        """
        is_new, self._generation = group.generation != self._generation, group.generation
        if group.size == 1:
            self._training.agreed_step = step
        if group.size == 1 or not (is_new or is_last or step % EVERY_STEPS == 0 or step in FIRST_STEPS):
            return 0
        self._numbers = self.held.numbers()
        number = combined([*map(abs, self._numbers.values())], MODULUS)
        return 1 + (number if self._shards == 1 else self._of_node(number))

    def _of_node(self, number: int) -> int:
        """Combine the checksums of a node's processes, so that nodes can be compared shard by shard. If what is not
        sharded differs within the node, each process returns a different number.
        """
        of_shards = self.held.of_shards
        unsharded = [abs(one) for name, one in self._numbers.items() if name not in of_shards]
        whole = combined(unsharded, MODULUS)
        said = self._ties.exchange(number * MODULUS + whole)
        alike = len({word % MODULUS for word in said}) == 1
        return combined([word // MODULUS for word in said], MODULUS) if alike else whole

    def compare(self, words: Words, step: int, group: RankGroup, size: int) -> bool:
        """Check the sums of step ``step``. :class:`PilotError` on all ranks if their states differ.

        False: the group broke meanwhile, so the step is void.
        """
        if not words.checksum:
            return True
        if not agreed(words.checksum, words.checksum_squares, size):
            try:
                told = gather_values((self._training.agreed_step, self._numbers), _Told, group.gather)
            except PeerGone:
                return False
            self._judge(step, group, told)
        self._training.agreed_step = step
        return True

    def _judge(self, step: int, group: RankGroup, told: Sequence[_Told]) -> None:
        since = min(agreed_step for agreed_step, _ in told)
        own, differing = self._compared(tables := [numbers for _, numbers in told])
        own |= {name for name in self._numbers if all(numbers.get(name, 1) < 0 for numbers in tables)}
        self.held.are_own(own)
        if differing:
            raise PilotError(
                f"the ranks no longer hold the same state: {differing[0]}{_others(len(differing) - 1)} has differed"
                f" since {_when(since, step)}; look for what the script does on one rank only (if session.rank"
                " == 0:, its own random generator, a value that it sets by a counter of its own: use session.steps) or"
                " sets from its own batch (in the first one: run it through the model before the session),"
                f" then submit it again from an earlier checkpoint: {group.distrust(since)}"
            )

    def _compared(self, told: Sequence[Numbers]) -> tuple[set[str], list[str]]:
        """Names of what a rank knows to be each rank's own, and of what differs otherwise."""
        columns = {name: [numbers.get(name) for numbers in told] for name in dict.fromkeys(chain(*told))}
        own = {name for name, column in columns.items() if OWN in column}
        return own, [name for name, column in columns.items() if name not in own and self._differ(name, column)]

    def _differ(self, name: str, column: Sequence[int | None]) -> bool:
        shards = self._shards if name in self.held.of_shards else 1
        values = [number and abs(number) for number in column]
        has_changed = any(number is not None and number > 0 for number in column)
        return has_changed and any(len(set(values[shard::shards])) > 1 for shard in range(shards))


def _when(since: int, step: int) -> str:
    return f"a step between {since} and {step}" if since < step else f"step {step}"


def _others(count: int) -> str:
    return f" (and {count} more)" if count else ""
