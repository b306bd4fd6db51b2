"""What ``pilot replay`` and ``pilot trace`` print with ``--json``."""

from __future__ import annotations

from pilot.io.pool_status import Told
from pilot.sim.metrics import Summary
from pilot.sim.sweep import Case
from pilot.traces.statistics import TraceStatistics


class ReplayTold(Told, frozen=True):
    """One replay.

    Parameters
    ----------
    case : the replay's options
    summary : its results
    efficiency_is : what `efficiency` compares, in words
    """

    case: Case
    summary: Summary
    efficiency_is: str


class ReplayList(Told, frozen=True):
    """What `pilot replay --json` prints; the output is deterministic.

    Parameters
    ----------
    replays : the replays in the order of the option values
    """

    replays: list[ReplayTold]


class TracesTold(Told, frozen=True):
    """What `pilot trace stats --json` and `pilot trace synth --json` print.

    Parameters
    ----------
    traces : by file name; `source` is the trace that a synthetic one imitates
    fragment_distance : Kolmogorov-Smirnov distance between the fragment lengths of a synthetic trace and its source;
        null: no synthetic trace
    """

    traces: dict[str, TraceStatistics]
    fragment_distance: float | None = None
