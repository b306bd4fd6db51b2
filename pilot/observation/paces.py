"""Nodes that take much longer for their samples than the others of their group, which wait for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from pilot.core.ids import NodeId, TrainerId

KEPT = 8
"""How many of a node's newest paces are kept: a bit more than a minute of short steps, or more of long ones."""

STEPS_LEAST = 20
SECONDS_LEAST = 60.0
RATIO = 2.0
"""A node is slow if it takes this many times as long per sample as the median of the others."""

SHARE = 0.1
"""… and if the others wait for it for at least this share of the time."""


@dataclass(frozen=True, slots=True)
class Pace:
    """``steps`` of a node with ``samples`` of its own, for which it computed ``own_s`` of the ``wall_s`` that they
    took; the rest it waited for others.
    """

    steps: int
    samples: int
    own_s: float
    wall_s: float

    @classmethod
    def over(cls, paces: Iterable[Pace]) -> Pace:
        """All of them together."""
        all_of_them = list(paces)
        return cls(
            sum(p.steps for p in all_of_them),
            sum(p.samples for p in all_of_them),
            sum(p.own_s for p in all_of_them),
            sum(p.wall_s for p in all_of_them),
        )

    @property
    def tells(self) -> bool:
        """Whether it is long enough to judge by."""
        return self.steps >= STEPS_LEAST and self.wall_s >= SECONDS_LEAST and self.samples > 0

    @property
    def per_sample_s(self) -> float:
        """Time that it computes for a sample."""
        return self.own_s / self.samples


def slow(paces: Mapping[NodeId, Pace]) -> list[tuple[NodeId, float]]:
    """The slow nodes of a group, and how many times as long as the others they take; the slowest first.

    ``paces`` has all members; in a group of more than two, a node is compared with at least two others.
    """
    telling = {node: pace for node, pace in paces.items() if pace.tells}
    if len(telling) < min(3, max(2, len(paces))):
        return []
    found = []
    for node, pace in telling.items():
        usual_s = median(other.per_sample_s for one, other in telling.items() if one != node)
        more_s = pace.own_s - usual_s * pace.samples
        if usual_s > 0 and pace.per_sample_s >= RATIO * usual_s and more_s >= SHARE * pace.wall_s:
            found.append((node, pace.per_sample_s / usual_s))
    return sorted(found, key=lambda each: -each[1])


def sentence(node: NodeId, times: float, trainer: TrainerId, size: int, job: str) -> str:
    """One line about a slow node of a group of ``size``; ``job`` is the scheduler's, "" if there is none."""
    others, wait = ("the other node", "waits") if size == 2 else ("the other nodes", "wait")
    leave_out = f"; to leave it out, end its job {job}" if job else ""
    return f"{node} takes {times:.1f} times as long per sample as {others} of {trainer}, which {wait} for it{leave_out}"
