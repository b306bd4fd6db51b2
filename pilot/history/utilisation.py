"""U: what the pool's idle fragments were worth (FreeTrain eqs 17-18)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pilot.core.curves.curve import Curve
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Candidate, Plan, Problem
from pilot.core.trainer.spec import TrainerSpec

Best = Callable[[Problem], Plan]
"""An exact planner."""


@dataclass(frozen=True, slots=True)
class WorkAccount:
    """What U is computed from. Fields not explained here are as in :class:`pilot.history.monitor.Monitor`.

    ``specs`` are in submission order; ``curves`` are the fixed ones, else the measured ones, each in units of its rate
    on one node: samples of different scripts, and steps of torchrun scripts, cannot be added up. ``max_parallel``
    trainers share the pool at once.
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

    ``work`` is what the trainers did, in node-seconds at the speed of one node: from their curves and how long they
    trained on each number of nodes. ``static_work`` is what the same trainers, each for as long as it was open, would
    have done on ``eq_nodes`` dedicated nodes divided optimally; None if not computed.
    """

    eq_nodes: float
    work: float
    static_work: float | None

    @property
    def u(self) -> float | None:
        """U (FreeTrain eq. 18); None if there is nothing to compare with."""
        return self.work / self.static_work if self.static_work else None


def utilisation(account: WorkAccount, best: Best | None) -> Utilisation:
    """Compute U. ``best`` divides the static nodes, twice for each set of trainers that was open."""
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
    """The best total rate of the trainers ``there`` on ``nodes`` static nodes, interpolated between whole numbers."""
    low = math.floor(nodes)
    rates = [best(_problem(account, there, n)).objective for n in (low, low + 1)]
    return rates[0] + (rates[1] - rates[0]) * (nodes - low)


def _problem(account: WorkAccount, there: tuple[TrainerId, ...], nodes: int) -> Problem:
    """A trainer without nodes pays for no rescale, so with ``t_fwd_s`` 1 the objective is the total rate."""
    specs = {spec.trainer: spec for spec in account.specs}
    candidates = tuple(
        Candidate(t, 0, specs[t].min_nodes, specs[t].max_nodes, account.curves[t], 0.0, 0.0, specs[t].sizes)
        for t in there[: account.max_parallel]
    )
    return Problem(nodes, 1.0, candidates)
