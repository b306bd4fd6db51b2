"""What it takes in a replay until curves are known: interruptions, and how soon plans are good."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

import numpy as np

from pilot.core.ids import TrainerId
from pilot.sim.accounting import Account
from pilot.sim.records import Admitted
from pilot.traces.fragments import Floats

GOOD = 0.9
"""Of the oracle's rate."""

BestRate = Callable[[Admitted, float], float]
"""The best total rate of trainers on a number of nodes."""


def interruptions(accounts: Mapping[TrainerId, Account]) -> float:
    """How often a trainer was interrupted, by preemptions and plans; the mean of all that were admitted."""
    return sum(account.interruptions for account in accounts.values()) / len(accounts) if accounts else 0.0


def to_oracle_s(
    columns: Mapping[str, Floats], admitted: Sequence[Admitted], accounts: Iterable[Account], best: BestRate
) -> float | None:
    """Seconds from a trainer's admission until the total rate is :data:`GOOD` of what an oracle would get from the
    available nodes: the best division, at once and at no cost. The mean of all trainers; None: there is none.

    A trainer after which that rate is not reached counts until the end.
    """
    time_s, pool = columns["time_s"], columns["pool"]
    rates = columns["gained"][1:] / np.maximum(np.diff(time_s), 1e-12)
    waits = []
    for account in accounts:
        first = int(np.searchsorted(time_s, account.admitted_s))
        reached = (at for at in range(first, len(rates)) if _good(rates[at], pool[at], admitted[at], best))
        waits.append(float(time_s[next(reached, -1)]) - account.admitted_s)
    return fmean(waits) if waits else None


def _good(rate: float, pool: float, admitted: Admitted, best: BestRate) -> bool:
    return pool > 0 and rate >= GOOD * best(admitted, pool)
