"""The state of a coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from pilot.core.arrivals import Arrivals
from pilot.core.blame import BlameState
from pilot.core.budget import Usage
from pilot.core.commands import Outcome
from pilot.core.curve_model import Priors
from pilot.core.ids import PlanId, StudyId, TrainerId
from pilot.core.losses import Losses
from pilot.core.measured import RescaleCosts
from pilot.core.pool import PoolState
from pilot.core.problem import Plan, Problem
from pilot.core.profiles import Changes
from pilot.core.study import Study
from pilot.core.trainer import Trainer


@dataclass(slots=True)
class State:
    """The complete state of a coordinator, without its configuration: plain data in a fixed order, so that the same
    events give the same bytes wherever it is written.
    """

    trainers: dict[TrainerId, Trainer]
    past: dict[TrainerId, Outcome]
    studies: dict[StudyId, Study]
    pool: PoolState
    blame: BlameState
    plan_id: PlanId
    problem: Problem | None
    plan: Plan | None
    settled: bool
    planning: bool
    asked_s: float
    awaited: bool
    decided_s: float
    draining: bool
    reopened: int
    costs: RescaleCosts
    priors: Priors
    usage: Usage
    arrivals: Arrivals
    changes: Changes
    losses: Losses
    now_s: float
