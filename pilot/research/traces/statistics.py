"""Statistics of a trace of idle nodes (FreeTrain §2.1, Table 1, Figs 1 and 7a)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pilot.protocol.pool_status import Answer
from pilot.research.traces.changes import Change
from pilot.research.traces.fragments import Floats, PoolSize, fragments_of, pool_size

SHORT_S = 600.0
"""A fragment below this is *short* (FreeTrain §2.1)."""

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
WITHIN_S = (10, 30, 60, 120, 170, 300, 600, 1200)


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """Figures of one trace."""

    duration_s: float  #: from time 0 to the last event
    machine_nodes: int  #: nodes of the machine: as given, else those that the trace names
    events_per_h: float  #: changes of the pool; INC/h and DEC/h of Table 1
    joins_per_h: float  #: changes at which nodes join; INC/h of Table 1
    leaves_per_h: float  #: changes at which nodes leave; DEC/h of Table 1
    node_hours: float  #: of idle nodes
    eq_nodes: float  #: FreeTrain eq. 18
    idle_ratio: float  #: `eq_nodes` as a share of the machine
    fragments: int  #: how many there are
    short_fragments: float  #: share of fragments below 10 minutes
    short_node_time: float  #: share of node-time in fragments below 10 minutes
    fragment_s: tuple[tuple[float, float], ...]  #: (quantile, length)
    pool_nodes: tuple[tuple[float, float], ...]  #: (quantile over time, nodes)
    #: (t in seconds, share of events that are followed by a leave within t)
    preempted_within: tuple[tuple[float, float], ...]
    #: (t in seconds, share of events that are followed by any event within t)
    changed_within: tuple[tuple[float, float], ...]


class TracesAnswer(Answer, frozen=True):
    """The output of `pilot trace stats --json` and `pilot trace synth --json`."""

    traces: dict[str, TraceStatistics]  #: by file name; `source` is the trace that a synthetic one imitates
    #: Kolmogorov-Smirnov distance between the fragment lengths of a synthetic trace and its source; null: no synthetic
    #: trace
    fragment_distance: float | None = None


def describe(changes: Sequence[Change], machine_nodes: int | None = None) -> TraceStatistics:
    """Compute the statistics of a trace that has at least one change."""
    pool = pool_size(changes)
    lengths = fragment_lengths(changes)
    short = lengths < SHORT_S
    nodes = machine_nodes or len({node for change in changes for node in change.joined})
    return TraceStatistics(
        duration_s=pool.duration_s,
        machine_nodes=nodes,
        events_per_h=_per_hour(len(changes), pool),
        joins_per_h=_per_hour(sum(bool(change.joined) for change in changes), pool),
        leaves_per_h=_per_hour(sum(bool(change.left) for change in changes), pool),
        node_hours=pool.node_seconds / 3600,
        eq_nodes=pool.eq_nodes,
        idle_ratio=pool.eq_nodes / nodes,
        fragments=len(lengths),
        short_fragments=float(short.mean()),
        short_node_time=float(lengths[short].sum() / (lengths.sum() or 1.0)),
        fragment_s=tuple(zip(QUANTILES, map(float, np.quantile(lengths, QUANTILES)), strict=True)),
        pool_nodes=tuple(zip(QUANTILES, pool.quantiles(QUANTILES), strict=False)),
        preempted_within=tuple((t, preemption_chance(changes, t)) for t in WITHIN_S),
        changed_within=tuple((t, change_chance(changes, t)) for t in WITHIN_S),
    )


def fragment_lengths(changes: Sequence[Change]) -> Floats:
    """Lengths of all fragments in seconds, ascending; those cut off by the end of the trace count up to there."""
    return np.sort(np.array([fragment.length_s for fragment in fragments_of(changes)]))


def preemption_chance(changes: Sequence[Change], within_s: float) -> float:
    """Share of events after which a node leaves within ``within_s``."""
    return _followed(changes, [change for change in changes if change.left], within_s)


def change_chance(changes: Sequence[Change], within_s: float) -> float:
    """Share of events after which the pool changes again within ``within_s``, by a join or a leave.

    On the published week this, not :func:`preemption_chance`, is 90% at 170 s, the value that FreeTrain Fig 7a gives
    for the chance of a preemption.
    """
    return _followed(changes, changes, within_s)


def _followed(changes: Sequence[Change], by: Sequence[Change], within_s: float) -> float:
    times, following = (np.array([change.time_s for change in some]) for some in (changes, by))
    next_s = np.append(following, np.inf)[np.searchsorted(following, times, side="right")]
    return float((next_s - times <= within_s).mean())


def distance(a: Floats, b: Floats) -> float:
    """Largest difference between two empirical distributions (Kolmogorov-Smirnov), 0 to 1; both sorted, not empty."""
    values = np.concatenate([a, b])
    below_a = np.searchsorted(a, values, side="right") / len(a)
    below_b = np.searchsorted(b, values, side="right") / len(b)
    return float(np.abs(below_a - below_b).max())


def _per_hour(count: int, pool: PoolSize) -> float:
    return count / (pool.duration_s / 3600) if pool.duration_s else 0.0
