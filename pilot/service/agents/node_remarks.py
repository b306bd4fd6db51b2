"""Remarks about nodes: library versions that differ from the pool's majority, and nodes for which the others wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from msgspec.structs import astuple

from pilot.core.coordinator import Coordinator
from pilot.core.ids import NodeId, TrainerId
from pilot.history.words import node_count, node_names
from pilot.protocol.fields import StepTimes
from pilot.service.agents.roster import Roster

LINES_MAX = 3
"""Differing sets of versions, and slow nodes of a group, that get a line each."""

_EFFECT = "sums may differ in their last digits, and a state that one version saves may not load in another"

Versions = Mapping[str, str]
"""By name, as an agent reports them (``Hello.versions``)."""

STEPS_MIN = 20
SECONDS_MIN = 60.0
RATIO = 2.0
"""A node is slow if it takes this many times as long per sample as the median of the others."""

SHARE = 0.1
"""… and if the others wait for it for at least this share of the time."""


def node_remarks(core: Coordinator, roster: Roster) -> list[str]:
    """Lines about nodes whose library versions differ from the majority's, and about nodes that are much slower than
    the others of their group."""
    lines, pilots = differences(roster.versions()), roster.pilots
    for trainer in core.trainers.values():
        members = trainer.group.members if trainer.group is not None else ()
        times = {node: total(pilots[node].step_times(trainer.id)) for node in members if node in pilots}
        found = slow(times)
        for node, ratio in found[:LINES_MAX]:
            lines.append(sentence(node, ratio, trainer.id, len(members), pilots[node].job or ""))
        if len(found) > LINES_MAX:
            lines.append(f"{node_count(len(found) - LINES_MAX)} more of {trainer.id} are as slow")
    return lines


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


def total(times: Iterable[StepTimes]) -> StepTimes:
    """The sum of several measurements of one node; what they say of shares is the newest one's."""
    rows = [astuple(one) for one in times] or [astuple(StepTimes(0, 0, 0.0, 0.0))]
    sums: list[Any] = [sum(row) for row in zip(*(row[:4] for row in rows), strict=True)]
    return StepTimes(*sums, *rows[-1][4:])


def slow(times: Mapping[NodeId, StepTimes]) -> list[tuple[NodeId, float]]:
    """The slow nodes of a group, and how many times as long as the others they take; the slowest first.

    ``times`` has all members; in a group of more than two, a node is compared with at least two others.
    """
    known = {node: t for node, t in times.items() if t.steps >= STEPS_MIN and t.wall_s >= SECONDS_MIN and t.samples > 0}
    if len(known) < min(3, max(2, len(times))):
        return []
    found = []
    for node, own in known.items():
        usual_s = median(other.own_s / other.samples for one, other in known.items() if one != node)
        per_sample_s, more_s = own.own_s / own.samples, own.own_s - usual_s * own.samples
        if usual_s > 0 and per_sample_s >= RATIO * usual_s and more_s >= SHARE * own.wall_s:
            found.append((node, per_sample_s / usual_s))
    return sorted(found, key=lambda each: -each[1])


def sentence(node: NodeId, ratio: float, trainer: TrainerId, size: int, job: str) -> str:
    """One line about a slow node of a group of ``size``; ``job`` is the scheduler's, "" if there is none."""
    others, wait = ("the other node", "waits") if size == 2 else ("the other nodes", "wait")
    leave_out = f"; to leave it out, end its job {job}" if job else ""
    return f"{node} takes {ratio:.1f} times as long per sample as {others} of {trainer}, which {wait} for it{leave_out}"
