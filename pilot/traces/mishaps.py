"""What may go wrong with the trainers of a replay (Huawei §5.4): estimates that are off, scripts with bugs, users who
change their minds. Everything is drawn once per trainer, so it is the same whatever a planner does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pilot.core.errors import UserError
from pilot.traces.workload import Ending, WorkloadRow

BUG_WITHIN_S = 300.0
"""A bug strikes within this time on one node, and sooner on more nodes."""


@dataclass(frozen=True, slots=True)
class Mishaps:
    """What share of the trainers meets each end, and how far off estimates are.

    Parameters
    ----------
    eta_noise : planners see the true work times a factor between ``1 - eta_noise`` and ``1 + eta_noise``
    hang_share : trainers that stop making progress within five minutes of training, and never end
    fail_share : trainers that end in an error within five minutes of training
    cancel_share : trainers that their users cancel after a random share of their work
    seed : of everything that is drawn

    Raises
    ------
    UserError : shares that are not between 0 and 1, or add up to more than 1
    """

    eta_noise: float = 0.0
    hang_share: float = 0.0
    fail_share: float = 0.0
    cancel_share: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        shares = (self.hang_share, self.fail_share, self.cancel_share)
        if not all(0 <= share <= 1 for share in (self.eta_noise, *shares)):
            raise UserError("the noise and the shares of trainers must be between 0 and 1")
        if sum(shares) > 1:
            raise UserError(
                f"shares of trainers that hang, fail and are cancelled add up to {sum(shares):g}, more than 1"
            )


def befallen(rows: Sequence[WorkloadRow], mishaps: Mishaps) -> list[WorkloadRow]:
    """``rows`` with the mishaps drawn for each. A trainer spared at one share is also spared at any smaller one."""
    if mishaps == Mishaps(seed=mishaps.seed):
        return list(rows)
    rng = random.Random(mishaps.seed)
    return [_befallen(row, mishaps, rng.uniform(-1, 1), rng.random(), rng.random()) for row in rows]


def _befallen(row: WorkloadRow, mishaps: Mishaps, off: float, lot: float, when: float) -> WorkloadRow:
    told = None if row.spec.samples is None else row.spec.samples * (1 + mishaps.eta_noise * off)
    noisy = replace(row, spec=replace(row.spec, samples=told))
    curve = row.spec.curve
    bug_at = when * BUG_WITHIN_S * (curve.single_node_rate() if curve is not None else 1.0)
    for share, ending, samples in (
        (mishaps.hang_share, Ending.HANGS, bug_at),
        (mishaps.fail_share, Ending.FAILS, bug_at),
        (mishaps.cancel_share, Ending.CANCELLED, when * row.samples),
    ):
        if lot < share:
            return replace(noisy, samples=min(row.samples, samples), ending=ending)
        lot -= share
    return noisy
