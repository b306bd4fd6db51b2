"""Synthetic traces: resampled from a given one, or drawn from published statistics.

Both are for experiments on a real machine or in tests, when a site's own trace may not be used or is too long
(MalleTrain §4.1). The result is checked by comparing its distributions
(:func:`pilot.research.traces.statistics.distance`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from pilot.core.errors import UserError
from pilot.core.ids import NodeId, natural_key
from pilot.research.traces.changes import Change
from pilot.research.traces.fragments import Fragment, changes_of, fragments_of

HOUR_S = 3600.0


def resample(
    changes: Sequence[Change], duration_s: float, seed: int, *, nodes: int | None = None, block_s: float = 12 * HOUR_S
) -> list[Change]:
    """A trace with the same distribution as a given one: a circular block bootstrap (Politis & Romano 1992).

    Blocks of ``block_s``, each from an independent, uniformly random place in the source, follow one another; nodes
    that join or leave together within a block still do. Fragments that span two blocks are cut there. With ``nodes``,
    a run of that many neighbours (in hostname order) is drawn and the rest is dropped.
    """
    source_s = changes[-1].time_s
    if source_s <= 0:
        raise UserError("a trace with a single event cannot be resampled; it needs at least two times")
    rng = np.random.default_rng(seed)
    fragments = _neighbours(fragments_of(changes), nodes, rng)
    pieces: list[Fragment] = []
    for start_s in np.arange(0.0, duration_s, block_s):
        length_s = min(block_s, duration_s - start_s)
        offset_s = math.floor(rng.uniform(0, source_s))
        pieces += _block(fragments, offset_s, length_s, source_s, float(start_s))
    return changes_of(_open_at_end(pieces, duration_s))


def _neighbours(fragments: list[Fragment], nodes: int | None, rng: np.random.Generator) -> list[Fragment]:
    names = sorted({fragment.node for fragment in fragments}, key=natural_key)
    if nodes is None or nodes == len(names):
        return fragments
    if nodes > len(names):
        raise UserError(f"the source has {len(names)} nodes; request at most that many, or use --published")
    first = int(rng.integers(len(names) - nodes + 1))
    chosen = set(names[first : first + nodes])
    return [fragment for fragment in fragments if fragment.node in chosen]


def _block(
    fragments: Sequence[Fragment], offset_s: float, length_s: float, source_s: float, to_s: float
) -> Iterator[Fragment]:
    """The source over [offset_s, offset_s + length_s), wrapped around, moved to ``to_s`` and cut to the block."""
    for turn in range(math.ceil((offset_s + length_s) / source_s)):
        shift_s = turn * source_s - offset_s
        for fragment in fragments:
            start_s, end_s = max(0.0, fragment.start_s + shift_s), min(length_s, fragment.end_s + shift_s)
            if start_s < end_s:
                yield Fragment(fragment.node, to_s + start_s, to_s + end_s)


def _open_at_end(fragments: Sequence[Fragment], end_s: float) -> Iterator[Fragment]:
    """Mark fragments that last to the end of the trace: their nodes do not leave at that time."""
    return (replace(f, censored=True) if f.end_s >= end_s else f for f in fragments)


@dataclass(frozen=True, slots=True)
class Published:
    """The published statistics of a machine's idle nodes (FreeTrain Table 1, Fig 1).

    ``short_fragments`` and ``short_node_time``: the share of fragments below 10 minutes, and of node-time in them
    (published only for Summit, and assumed for the others).
    """

    machine_nodes: int
    joins_per_h: float
    leaves_per_h: float
    eq_nodes: float
    short_fragments: float = 0.58
    short_node_time: float = 0.10

    def on(self, nodes: int) -> Published:
        """The same machine with another number of nodes: fewer nodes at a time, as often as before."""
        return replace(self, machine_nodes=nodes, eq_nodes=self.eq_nodes * nodes / self.machine_nodes)

    def length_law(self) -> tuple[float, float]:
        """μ and σ of the lognormal law of fragment lengths that gives both shares.

        With z = (ln 600 - μ) / σ: P(L < 600 s) = Φ(z), and the share of node-time in them is Φ(z - σ).
        """
        z = NormalDist().inv_cdf(self.short_fragments)
        sigma = z - NormalDist().inv_cdf(self.short_node_time)
        return math.log(600.0) - z * sigma, sigma


PUBLISHED = {
    "summit": Published(4608, 41.7, 28.6, 524.0),
    "theta": Published(4392, 6.3, 6.2, 547.0),
    "mira": Published(49152, 2.8, 2.4, 5071.0),
}
POLL_S = 10.0
"""The shortest fragment: the published figures come from polls every 10 s (FreeTrain §2.1)."""
WARM_UP_S = 48 * HOUR_S
"""Simulated before time 0, so that the pool starts in its steady state."""


def draw(published: Published, duration_s: float, seed: int) -> list[Change]:
    """A trace with published statistics.

    Bursts of neighbouring nodes join as a Poisson process and leave together after a lognormal time; leaves of
    different bursts that are close in time are merged, so that both rates are as published.
    """
    rng = np.random.default_rng(seed)
    bursts = _merge_leaves(list(_bursts(published, duration_s, rng)), published)
    free_from = np.zeros(published.machine_nodes)
    free_from -= WARM_UP_S
    fragments = [f for burst in bursts for f in _place(burst, free_from, duration_s, rng)]
    return changes_of(fragments)


@dataclass(frozen=True, slots=True)
class _Burst:
    start_s: float
    end_s: float
    nodes: int


def _bursts(published: Published, duration_s: float, rng: np.random.Generator) -> Iterator[_Burst]:
    mu, sigma = published.length_law()
    per_s = published.eq_nodes / math.exp(mu + sigma**2 / 2)
    size = max(1.0, per_s * HOUR_S / published.joins_per_h)
    time_s = -WARM_UP_S
    while (time_s := time_s + rng.exponential(size / per_s)) < duration_s:
        length_s = max(POLL_S, rng.lognormal(mu, sigma))
        yield _Burst(round(time_s), round(time_s + length_s), int(rng.geometric(1 / size)))


def _merge_leaves(bursts: list[_Burst], published: Published) -> list[_Burst]:
    """Merge an end into the one before if they are within g: of a Poisson process of rate r, exp(-r g) remain."""
    within_s = HOUR_S / published.joins_per_h * math.log(max(1.0, published.joins_per_h / published.leaves_per_h))
    merged, last_s, as_s = [], -math.inf, -math.inf
    for burst in sorted(bursts, key=lambda b: b.end_s):
        if burst.end_s - last_s > within_s:
            as_s = burst.end_s
        last_s = burst.end_s
        merged.append(replace(burst, end_s=as_s) if as_s - burst.start_s >= POLL_S else burst)
    return sorted(merged, key=lambda b: b.start_s)


def _place(burst: _Burst, free_from: np.ndarray, duration_s: float, rng: np.random.Generator) -> Iterator[Fragment]:
    """Put the burst on the next free nodes from a random place on; what does not fit is dropped."""
    machine = len(free_from)
    order = (np.arange(machine) + int(rng.integers(machine))) % machine
    chosen = order[free_from[order] < burst.start_s][: burst.nodes]
    free_from[chosen] = burst.end_s
    start_s, end_s = max(0.0, burst.start_s), min(duration_s, burst.end_s)
    if start_s < end_s:
        for node in chosen:
            yield Fragment(NodeId(f"n{node:05d}"), start_s, end_s, censored=burst.end_s >= duration_s)
