"""U: what the pool's idle fragments were worth (FreeTrain eqs 17-18)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pilot.core.curve import Curve
from pilot.core.ids import TrainerId
from pilot.core.problem import Candidate, Plan, Problem
from pilot.core.spec import TrainerSpec

Best = Callable[[Problem], Plan]
"""An exact planner."""


@dataclass(frozen=True, slots=True)
class WorkAccount:
    """What happened, as far as U needs it. All but ``specs`` as in :class:`pilot.observation.monitor.Monitor`.

    ``specs`` are in the order of submission; ``curves`` are those that are fixed, else what was measured, each in units
    of its rate on one node: samples of different scripts, and the steps of those for torchrun, do not add up.
    ``max_parallel`` trainers share the pool at once.
    """

    specs: tuple[TrainerSpec, ...]
    curves: Mapping[TrainerId, Curve]
    seconds_on: Mapping[TrainerId, Mapping[int, float]]
    open_for_s: Mapping[tuple[TrainerId, ...], float]
    open_node_seconds: float
    max_parallel: int


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Eqs 17-18 over the time in which there were trainers.

    ``work`` is what the trainers did, by their curves and the time that they trained on so many nodes, in node-seconds
    at the speed of one node. ``static_work``
    is what the same trainers, as long as each was there, would have done on ``eq_nodes`` dedicated nodes that are
    divided in the best way; None: not reckoned.
    """

    eq_nodes: float
    work: float
    static_work: float | None

    @property
    def u(self) -> float | None:
        """U (FreeTrain eq. 18); None if there is nothing to compare with."""
        return self.work / self.static_work if self.static_work else None


def utilisation(account: WorkAccount, best: Best | None) -> Utilisation:
    """U of what happened. ``best`` divides static nodes, twice for each set of trainers that was there."""
    duration_s = sum(account.open_for_s.values())
    eq_nodes = account.open_node_seconds / duration_s if duration_s > 0 else 0.0
    work = sum(
        account.curves[trainer].at(nodes) * seconds
        for trainer, on in account.seconds_on.items()
        for nodes, seconds in on.items()
    )
    if best is None:
        return Utilisation(eq_nodes, work, None)
    rates = {there: _best_rate(account, there, eq_nodes, best) for there in account.open_for_s}
    static_work = sum(seconds * rates[there] for there, seconds in account.open_for_s.items())
    return Utilisation(eq_nodes, work, static_work)


def _best_rate(account: WorkAccount, there: tuple[TrainerId, ...], nodes: float, best: Best) -> float:
    """The best total rate of the trainers ``there`` on ``nodes`` static nodes; linear between whole numbers."""
    low = math.floor(nodes)
    rates = [best(_problem(account, there, n)).objective for n in (low, low + 1)]
    return rates[0] + (rates[1] - rates[0]) * (nodes - low)


def _problem(account: WorkAccount, there: tuple[TrainerId, ...], nodes: int) -> Problem:
    """Who holds nothing pays no rescale, so with ``t_fwd_s`` 1 the objective is the total rate."""
    specs = {spec.trainer: spec for spec in account.specs}
    candidates = tuple(
        Candidate(t, 0, specs[t].min_nodes, specs[t].max_nodes, account.curves[t], 0.0, 0.0, specs[t].sizes)
        for t in there[: account.max_parallel]
    )
    return Problem(nodes, 1.0, candidates)
