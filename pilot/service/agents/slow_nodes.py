"""Nodes that take much longer for their samples than the others of their group, which wait for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from msgspec.structs import astuple

from pilot.core.ids import NodeId, TrainerId
from pilot.protocol.wire import StepTimes

KEPT = 8
"""How many of a node's newest paces are kept: a bit more than a minute of short steps, or more of long ones."""

STEPS_LEAST = 20
SECONDS_LEAST = 60.0
RATIO = 2.0
"""A node is slow if it takes this many times as long per sample as the median of the others."""

SHARE = 0.1
"""… and if the others wait for it for at least this share of the time."""


def over(paces: Iterable[StepTimes]) -> StepTimes:
    """All of them together."""
    sums = [sum(row) for row in zip(*map(astuple, paces), strict=True)] or [0, 0, 0.0, 0.0]
    return StepTimes(*sums)


def tells(pace: StepTimes) -> bool:
    """Whether it is long enough to judge by."""
    return pace.steps >= STEPS_LEAST and pace.wall_s >= SECONDS_LEAST and pace.samples > 0


def per_sample_s(pace: StepTimes) -> float:
    """Time that the node computes for a sample."""
    return pace.own_s / pace.samples


def slow(paces: Mapping[NodeId, StepTimes]) -> list[tuple[NodeId, float]]:
    """The slow nodes of a group, and how many times as long as the others they take; the slowest first.

    ``paces`` has all members; in a group of more than two, a node is compared with at least two others.
    """
    telling = {node: pace for node, pace in paces.items() if tells(pace)}
    if len(telling) < min(3, max(2, len(paces))):
        return []
    found = []
    for node, pace in telling.items():
        usual_s = median(per_sample_s(other) for one, other in telling.items() if one != node)
        more_s = pace.own_s - usual_s * pace.samples
        if usual_s > 0 and per_sample_s(pace) >= RATIO * usual_s and more_s >= SHARE * pace.wall_s:
            found.append((node, per_sample_s(pace) / usual_s))
    return sorted(found, key=lambda each: -each[1])


def sentence(node: NodeId, times: float, trainer: TrainerId, size: int, job: str) -> str:
    """One line about a slow node of a group of ``size``; ``job`` is the scheduler's, "" if there is none."""
    others, wait = ("the other node", "waits") if size == 2 else ("the other nodes", "wait")
    leave_out = f"; to leave it out, end its job {job}" if job else ""
    return f"{node} takes {times:.1f} times as long per sample as {others} of {trainer}, which {wait} for it{leave_out}"
