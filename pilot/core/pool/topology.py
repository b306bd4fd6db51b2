"""Which nodes are near each other, by their names: a trainer gets the nodes nearest to those that it has.

A pattern says which parts of a host's name are its units, from the largest to the smallest: from Summit's ``g13n14``,
``([a-h])([0-9]+)n`` reads the row ``g`` and in it the cabinet ``13``. What neighbours are worth is another matter:
on a dragonfly or fat tree MalleTrain §4.3 finds no difference in training speed. But neighbours also come and go
together, so the fewer trainers have nodes in a unit, the fewer have to rescale when its nodes go.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pilot.core.errors import UserError
from pilot.core.ids import NodeId

Units = tuple[tuple[str, ...], ...]
"""The units that a node is in, the smallest first; each is named with those that it is in."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Nodes by their units: ``pattern`` is a regular expression on the start of a host's name, with a group for each
    level. Nodes that do not match are near no other node.

    Raises
    ------
    UserError : it is no regular expression, or has no group
    """

    pattern: str
    _regex: re.Pattern[str] = field(init=False, compare=False)
    _known: dict[str, Units] = field(init=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        try:
            regex = re.compile(self.pattern)
        except re.error as error:
            raise UserError(f"topology {self.pattern!r} is no regular expression: {error}") from None
        if not regex.groups:
            raise UserError(f"topology {self.pattern!r} has no group: put what names a unit in parentheses")
        object.__setattr__(self, "_regex", regex)

    def units(self, node: NodeId) -> Units:
        """The units that ``node`` is in, the smallest first."""
        host = node.partition(".")[0]  # what follows names the pilot: another one each time
        if host not in self._known:
            found = self._regex.match(host)
            parts = tuple(part or "" for part in found.groups()) if found else (host,) * self._regex.groups
            self._known[host] = tuple(parts[:level] for level in range(len(parts), 0, -1))
        return self._known[host]

    def nearest(self, own: Sequence[NodeId], free: Sequence[NodeId], count: int) -> list[NodeId]:
        """``count`` of the ``free`` nodes for a trainer that has ``own``, nearest first; otherwise in their order.

        One without nodes gets them in the smallest unit that has enough, of these in the one that has least to spare.
        """
        near = self._members(own or self._home(free, count))
        return sorted(free, key=lambda node: self._nearness(node, near))[:count]

    def farthest(self, own: Sequence[NodeId]) -> list[NodeId]:
        """``own`` in the order in which a trainer gives them back: those with the fewest others near them first."""
        near = self._members(own)
        return sorted(own, key=lambda node: self._nearness(node, near), reverse=True)

    def _home(self, free: Sequence[NodeId], count: int) -> list[NodeId]:
        """The free nodes of the unit in which a trainer without nodes starts; if none has enough, of the largest."""
        members = self._members(free)
        smallest_first = sorted(members, key=len, reverse=True)
        enough = [unit for unit in smallest_first if members[unit] >= count]
        level = len(enough[0]) if enough else 1
        pick = min if enough else max
        fit = [unit for unit in (enough or smallest_first) if len(unit) == level]
        home = pick(fit, key=members.__getitem__, default=())
        return [node for node in free if home in self.units(node)]

    def _members(self, nodes: Iterable[NodeId]) -> Counter[tuple[str, ...]]:
        """How many of ``nodes`` are in each unit."""
        return Counter(unit for node in nodes for unit in self.units(node))

    def _nearness(self, node: NodeId, near: Counter[tuple[str, ...]]) -> tuple[int, ...]:
        return tuple(-near[unit] for unit in self.units(node))
