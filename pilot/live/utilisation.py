"""U: what the pool's idle holes were worth (FreeTrain eqs 17-18)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pilot.core.curve import Curve
from pilot.core.ids import TrainerId
from pilot.core.problem import Candidate, Plan, Problem
from pilot.core.spec import TrainerSpec
from pilot.live.monitor import Monitor

Best = Callable[[Problem], Plan]
"""An exact planner."""


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Eqs 17-18 over the time in which there were trainers.

    ``work`` is what the trainers did, by their curves and the time that they trained on so many nodes. ``static_work``
    is what the same trainers, as long as each was there, would have done on ``eq_nodes`` dedicated nodes that are
    divided in the best way. ``u`` is their ratio; None where there was nothing to compare with.
    """

    eq_nodes: float
    work: float
    static_work: float

    @property
    def u(self) -> float | None:
        """U (FreeTrain eq. 18)."""
        return self.work / self.static_work if self.static_work > 0 else None


def utilisation(
    monitor: Monitor,
    specs: Mapping[TrainerId, TrainerSpec],
    curves: Mapping[TrainerId, Curve],
    max_parallel: int,
    best: Best,
) -> Utilisation:
    """U of what ``monitor`` saw; ``curves`` are samples per second by nodes: the given ones where they are fixed."""
    duration_s = sum(monitor.open_for_s.values())
    eq_nodes = monitor.open_node_seconds / duration_s if duration_s > 0 else 0.0
    work = sum(
        curves[trainer].at(nodes) * seconds
        for trainer, record in monitor.trainers.items()
        for nodes, seconds in record.seconds_on.items()
    )
    static_work = sum(
        seconds * _best_rate([specs[t] for t in there[:max_parallel]], curves, eq_nodes, best)
        for there, seconds in monitor.open_for_s.items()
    )
    return Utilisation(eq_nodes, work, static_work)


def _best_rate(specs: Sequence[TrainerSpec], curves: Mapping[TrainerId, Curve], nodes: float, best: Best) -> float:
    """The best total rate on ``nodes`` static nodes; linear between the whole numbers beside it."""
    low = math.floor(nodes)
    rates = [best(_problem(specs, curves, n)).objective for n in (low, low + 1)]
    return rates[0] + (rates[1] - rates[0]) * (nodes - low)


def _problem(specs: Sequence[TrainerSpec], curves: Mapping[TrainerId, Curve], nodes: int) -> Problem:
    """Who holds nothing pays no rescale, so with ``t_fwd_s`` 1 the objective is the total rate."""
    candidates = tuple(Candidate(s.trainer, 0, s.min_nodes, s.max_nodes, curves[s.trainer], 0.0, 0.0) for s in specs)
    return Problem(nodes, 1.0, candidates)
