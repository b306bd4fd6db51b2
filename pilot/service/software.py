"""Nodes whose versions of Python, torch, numpy or MPI differ from those of the others, in words."""

from __future__ import annotations

from collections.abc import Mapping

from pilot.core.ids import NodeId
from pilot.observation.words import node_names

LINES = 3
"""How many differing sets of versions are told, one line each."""

NONE = "none"
_SO = "sums may differ in their last digits, and a state that one version saves may not load in another"

Versions = Mapping[str, str]
"""By name, as an agent reports them (``Hello.versions``)."""


class Seen:
    """The sets of versions that have been reported, so that a new one can be told when it comes."""

    def __init__(self) -> None:
        self._sets: set[tuple[tuple[str, str], ...]] = set()

    def is_another(self, versions: Versions) -> bool:
        """Whether there are others, and none is equal to these; after some, no more are told."""
        known, this = len(self._sets), _key(versions)
        if known <= LINES:
            self._sets.add(this)
        return 0 < known < len(self._sets)


def differences(installed: Mapping[NodeId, Versions]) -> list[str]:
    """One line for each set of versions that differs from the most frequent one; of two as frequent, the first."""
    nodes: dict[tuple[tuple[str, str], ...], list[NodeId]] = {}
    for node, versions in installed.items():
        nodes.setdefault(_key(versions), []).append(node)
    if len(nodes) < 2:
        return []
    usual = max(nodes, key=lambda each: len(nodes[each]))
    others = [each for each in nodes if each != usual]
    lines = [f"{_who(nodes[each])}: {_what(dict(each), dict(usual))}; {_SO}" for each in others[:LINES]]
    if rest := [node for each in others[LINES:] for node in nodes[each]]:
        lines.append(f"{_who(rest)}, too")
    return lines


def _key(versions: Versions) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(versions.items()))


def _who(nodes: list[NodeId]) -> str:
    return f"{node_names(nodes)} {'has' if len(nodes) == 1 else 'have'} other versions than most nodes"


def _what(these: Versions, usual: Versions) -> str:
    pairs = [(name, these.get(name, NONE), usual.get(name, NONE)) for name in dict.fromkeys([*usual, *these])]
    return ", ".join(f"{name} {this} instead of {that}" for name, this, that in pairs if this != that)
