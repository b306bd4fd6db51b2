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
    case : its options
    summary : what came of it
    efficiency_is : what is compared in `efficiency`, in words
    """

    case: Case
    summary: Summary
    efficiency_is: str


class ReplayList(Told, frozen=True):
    """What `pilot replay --json` prints: the same replay prints the same bytes.

    Parameters
    ----------
    replays : in the order of the options' values
    """

    replays: list[ReplayTold]


class TracesTold(Told, frozen=True):
    """What `pilot trace stats --json` prints, and `pilot trace synth --json`.

    Parameters
    ----------
    traces : by the names of their files; `source` is what a synthetic one was made like
    fragment_distance : Kolmogorov-Smirnov distance of a synthetic trace's fragment lengths from its source's; null:
        there is none
    """

    traces: dict[str, TraceStatistics]
    fragment_distance: float | None = None
