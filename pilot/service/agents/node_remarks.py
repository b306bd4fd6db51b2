"""Remarks about nodes whose library versions differ from the pool's majority."""

from __future__ import annotations

from collections.abc import Mapping

from pilot.core.ids import NodeId
from pilot.history.words import node_names

LINES_MAX = 3
"""Differing sets of versions that get a line each."""

_EFFECT = "sums may differ in their last digits, and a state that one version saves may not load in another"

Versions = Mapping[str, str]
"""By name, as an agent reports them (``Hello.versions``)."""


class VersionsSeen:
    """The sets of versions that have been reported, so that a new one can be logged when it comes."""

    def __init__(self) -> None:
        self._sets: set[tuple[tuple[str, str], ...]] = set()

    def is_another(self, versions: Versions) -> bool:
        """Whether ``versions`` differ from all others; False if there are no others, or :data:`LINES_MAX` already."""
        known = len(self._sets)
        if known <= LINES_MAX:
            self._sets.add(_key(versions))
        return 0 < known < len(self._sets)


def differences(installed: Mapping[NodeId, Versions]) -> list[str]:
    """One line for each set of versions that differs from the most frequent one; of two as frequent, the first."""
    nodes: dict[tuple[tuple[str, str], ...], list[NodeId]] = {}
    for node, versions in installed.items():
        nodes.setdefault(_key(versions), []).append(node)
    if len(nodes) < 2:
        return []
    usual = max(nodes, key=lambda versions: len(nodes[versions]))
    others = [versions for versions in nodes if versions != usual]
    lines = [f"{_differ(nodes[these])}: {_pairs(dict(these), dict(usual))}; {_EFFECT}" for these in others[:LINES_MAX]]
    if rest := [node for these in others[LINES_MAX:] for node in nodes[these]]:
        lines.append(f"{_differ(rest)}, too")
    return lines


def _key(versions: Versions) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(versions.items()))


def _differ(nodes: list[NodeId]) -> str:
    return f"{node_names(nodes)}: library versions differ from the pool's majority"


def _pairs(these: Versions, usual: Versions) -> str:
    pairs = [(name, these.get(name, "none"), usual.get(name, "none")) for name in dict.fromkeys([*usual, *these])]
    return ", ".join(f"{name} {this} instead of {that}" for name, this, that in pairs if this != that)
