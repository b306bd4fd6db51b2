"""The exchange at a round's end: the changes of the shared values, each node's weighted by its samples, summed over the
nodes like the gradients of a step, with the same control words.
"""

from __future__ import annotations

from pilot.comm.channel import PeerGone
from pilot.train.gradients.exchange import Exchange
from pilot.train.gradients.exchanges import Exchanges
from pilot.train.gradients.step_words import Words
from pilot.train.node.node_group import NodeGroup
from pilot.train.ranks.group import RankGroup
from pilot.train.state.outer import Outer


class OuterExchange(Exchanges):
    """The exchange of one session's ``outer`` values; ``group``: the processes of the node, each of which sends a
    part.
    """

    def __init__(self, outer: Outer, group: NodeGroup | None) -> None:
        self.outer, self._group = outer, group
        self.each = []
        self.renew()

    def renew(self) -> bool:
        """Exchange what is trained and tracked now."""
        for exchange in self.each:
            exchange.close()
        self.outer.renew()
        wire = self.outer.settings.wire
        self.each = [Exchange(self.outer.values, None if wire == "float32" else wire, group=self._group)]
        return True

    def sum(self, group: RankGroup, ranks: int, weight: float, words: Words) -> Words:
        """Sum the changes over the ``ranks`` of ``group``, this one's with ``weight`` (0: they do not count), and leave
        the sums in the values' ``grad``. Return the summed ``words``; :class:`PeerGone` if the group broke.
        """
        exchange = self.each[0]
        exchange.drop_gradients()
        exchange.begin(group.ring, alone=ranks == 1)
        exchange.begin_batch(weight, last=True)
        if weight:
            self.outer.contribute()
        exchange.flush()
        exchange.finish(words)
        if not group.summed():
            exchange.idle()
            raise PeerGone
        return exchange.take()
