"""Fragments (one node idle over [start_s, end_s)) and the pool's size over time, from a trace's changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pilot.core.ids import NodeId, natural_key
from pilot.research.traces.changes import Change

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fragment:
    """One node idle over [start_s, end_s). ``censored``: the trace ended before the node left."""

    node: NodeId
    start_s: float
    end_s: float
    censored: bool = False

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


def fragments_of(changes: Iterable[Change], end_s: float | None = None) -> list[Fragment]:
    """The fragments of a trace in the order they end; those still open end at ``end_s`` (default: the last event)."""
    started: dict[NodeId, float] = {}
    ended: list[Fragment] = []
    time_s = 0.0
    for change in changes:
        time_s = change.time_s
        ended += [Fragment(node, started.pop(node), time_s) for node in change.left]
        started.update((node, time_s) for node in change.joined)
    stop_s = time_s if end_s is None else end_s
    return ended + [Fragment(node, start_s, stop_s, censored=True) for node, start_s in started.items()]


def changes_of(fragments: Iterable[Fragment]) -> list[Change]:
    """The trace of ``fragments``: nodes that join or leave at the same time are one change, in natural order.

    A fragment that starts when another one on the same node ends continues it.
    """
    moves: dict[float, dict[NodeId, int]] = {}
    for fragment in fragments:
        for time_s, step in ((fragment.start_s, 1), (fragment.end_s, -1)):
            if step > 0 or not fragment.censored:
                at = moves.setdefault(time_s, {})
                at[fragment.node] = at.get(fragment.node, 0) + step
    changes = (_change(time_s, moves[time_s]) for time_s in sorted(moves))
    return [change for change in changes if change.joined or change.left]


def _change(time_s: float, moves: dict[NodeId, int]) -> Change:
    nodes = sorted(moves, key=natural_key)
    return Change(time_s, tuple(n for n in nodes if moves[n] > 0), tuple(n for n in nodes if moves[n] < 0))


@dataclass(frozen=True, slots=True)
class PoolSize:
    """``size[k]`` nodes over [time_s[k], time_s[k + 1]); ``size`` has one entry fewer than ``time_s``."""

    time_s: Floats
    size: Floats

    @property
    def duration_s(self) -> float:
        return float(self.time_s[-1] - self.time_s[0])

    @property
    def node_seconds(self) -> float:
        """∫ \\|pool\\| dt (FreeTrain eq. 17, in seconds)."""
        return float(self.size @ np.diff(self.time_s))

    @property
    def eq_nodes(self) -> float:
        """The static nodes that give the same node-seconds (FreeTrain eq. 18)."""
        return self.node_seconds / self.duration_s if self.duration_s else 0.0

    def quantiles(self, at: Sequence[float]) -> list[float]:
        """Quantiles of the size over time."""
        order = np.argsort(self.size, kind="stable")
        share = np.cumsum(np.diff(self.time_s)[order]) / (self.duration_s or 1.0)
        last = len(order) - 1
        return [float(self.size[order[min(int(np.searchsorted(share, q)), last)]]) for q in at] if last >= 0 else []


def pool_size(changes: Sequence[Change], end_s: float | None = None) -> PoolSize:
    """The pool's size from time 0 to ``end_s`` (default: the last event)."""
    stop_s = changes[-1].time_s if end_s is None else end_s
    inside = [change for change in changes if change.time_s < stop_s]
    times = np.array([0.0, *(change.time_s for change in inside), stop_s])
    steps = np.array([0, *(len(change.joined) - len(change.left) for change in inside)])
    return PoolSize(times, np.cumsum(steps).astype(np.float64))
