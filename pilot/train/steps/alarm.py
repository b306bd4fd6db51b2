"""The alarm: at intervals the ranks compare checksums of the values that must be the same on all of them. Ranks that
were the same stay the same, unless a script, a library or a machine is faulty; then further training is worthless.

The comparison is part of a step's sums (one number per rank, see :mod:`pilot.train.gradients.step_words`). Only if it
fails do the ranks gather a checksum per tensor, to find out whether only buffers differ that are each rank's own.
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
"""The interval of comparisons, each of which reads every tensor once (``benchmarks.guards`` measures the cost)."""
FIRST_STEPS = (1, 10)
"""Steps with early comparisons, because most faults of a script show early."""

_Report = tuple[int, Numbers]
"""A rank's last step in which all ranks agreed, and its checksums."""


class Alarm:
    """One rank's alarm. ``replicated``: the compared values; ``ties``: to the other processes of the node."""

    def __init__(self, training: Training, ties: NodeTies) -> None:
        self._training = training
        self._ties = ties
        self._shards = training.shards
        self.replicated = Replicated(training)
        self._numbers: Numbers = {}
        self._generation: int | None = None

    def checksum(self, step: int, group: Membership, *, is_last: bool = False) -> int:
        """Return this rank's checksum before step ``step`` of its group: 1 to 65521, or 0 without a comparison in this
        step. There is a comparison in a group's first step, because newcomers may behave differently (a learning rate
        by the script's own counter), and in the last step of the training, so that no difference stays unnoticed.
        """
        is_new, self._generation = group.generation != self._generation, group.generation
        if group.size == 1:
            self._training.agreed_step = step
        if group.size == 1 or not (is_new or is_last or step % EVERY_STEPS == 0 or step in FIRST_STEPS):
            return 0
        self._numbers = self.replicated.numbers()
        number = combined([*map(abs, self._numbers.values())], MODULUS)
        return 1 + (number if self._shards == 1 else self._of_node(number))

    def _of_node(self, number: int) -> int:
        """Return one number for the checksums of the node's processes, because nodes are compared shard by shard. If
        values that are not sharded differ within the node, each process returns another number.
        """
        of_shards = self.replicated.of_shards
        unsharded = combined([abs(one) for name, one in self._numbers.items() if name not in of_shards], MODULUS)
        words = self._ties.exchange(number * MODULUS + unsharded)
        alike = len({word % MODULUS for word in words}) == 1
        return combined([word // MODULUS for word in words], MODULUS) if alike else unsharded

    def compare(self, words: Words, step: int, group: RankGroup, size: int) -> bool:
        """Compare the checksums in the sums of step ``step``; :class:`PilotError` on all ranks if their states differ.

        Return False if the group broke meanwhile, so that the step is void.
        """
        if not words.checksum:
            return True
        if not agreed(words.checksum, words.checksum_squares, size):
            try:
                reports = gather_values((self._training.agreed_step, self._numbers), _Report, group.gather)
            except PeerGone:
                return False
            self._check(step, group, reports)
        self._training.agreed_step = step
        return True

    def _check(self, step: int, group: RankGroup, reports: Sequence[_Report]) -> None:
        since = min(agreed_step for agreed_step, _ in reports)
        own, differing = self._compared(tables := [numbers for _, numbers in reports])
        own |= {name for name in self._numbers if all(numbers.get(name, 1) < 0 for numbers in tables)}
        self.replicated.are_own(own)
        if differing:
            others = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
            when = f"a step between {since} and {step}" if since < step else f"step {step}"
            raise PilotError(
                f"the ranks no longer hold the same state: {differing[0]}{others} has differed since {when}; look for"
                " code that runs on one rank only (if session.rank == 0:, its own random generator, a value that it"
                " sets by its own counter: use session.steps) or sets values from its own batch (in the first one: run"
                " it through the model before the session), then submit it again from an earlier checkpoint:"
                f" {group.distrust(since)}"
            )

    def _compared(self, tables: Sequence[Numbers]) -> tuple[set[str], list[str]]:
        """Return the names of values that are each rank's own, according to any rank, and of others that differ."""
        columns = {name: [numbers.get(name) for numbers in tables] for name in dict.fromkeys(chain(*tables))}
        own = {name for name, column in columns.items() if OWN in column}
        return own, [name for name, column in columns.items() if name not in own and self._differ(name, column)]

    def _differ(self, name: str, column: Sequence[int | None]) -> bool:
        shards = self._shards if name in self.replicated.of_shards else 1
        values = [number and abs(number) for number in column]
        has_changed = any(number is not None and number > 0 for number in column)
        return has_changed and any(len(set(values[shard::shards])) > 1 for shard in range(shards))
