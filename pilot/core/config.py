"""How decisions are made, and all that they are made from."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field

from pilot.core.commands import Outcome
from pilot.core.curves.curve_model import ON_SUMMIT, Priors
from pilot.core.curves.measured import KEPT_OF_POOL, RescaleCosts
from pilot.core.curves.profiles import Changes
from pilot.core.errors import UserError
from pilot.core.ids import NO_PLAN, PlanId, StudyId, TrainerId
from pilot.core.plan.aging import Aging
from pilot.core.plan.arrivals import Arrivals
from pilot.core.plan.assign import Packing
from pilot.core.plan.objective import Objective, mean_completion_time, scaling_efficiency
from pilot.core.plan.problem import Plan, Problem
from pilot.core.plan.prognosis import NodesSeen
from pilot.core.pool.blame import BlameState
from pilot.core.pool.losses import Losses
from pilot.core.pool.pool import NodeOrder, PoolState, hostname_order
from pilot.core.pool.topology import Topology
from pilot.core.study.study import Study
from pilot.core.trainer.budget import Usage
from pilot.core.trainer.trainer import Trainer


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """How decisions are made."""

    t_fwd_s: float = 120.0  #: forward-looking time of FreeTrain eq. 16
    #: Pj_max, how many trainers share the pool at once, first come first served; None: as many as planners find
    #: worth it (:mod:`pilot.planners.admission`)
    max_parallel_trainers: int | None = None
    objective: Objective = scaling_efficiency  #: what plans maximise
    node_order: NodeOrder = hostname_order  #: order in which nodes are handed out and taken back
    #: which nodes are near each other; each trainer gets neighbours of its own nodes first, then by ``node_order``;
    #: None: by ``node_order`` alone
    topology: Topology | None = None
    grace_s: float = 30.0  #: the site's (see :mod:`pilot.core.trainer.checkpoint_interval`)
    checkpoint_interval_s: float = 300.0  #: the site's (see :mod:`pilot.core.trainer.checkpoint_interval`)
    #: charged node-hours that the pool may use from when it comes up; None: no limit
    budget_node_hours: float | None = None
    charge_factor: float = 1.0  #: the site's
    #: trainers submitted within this time of one another are planned for together; 0: each at once
    arrivals_s: float = 0.0
    #: after this time without nodes a trainer has its turn (:mod:`pilot.core.plan.aging`)
    longest_wait_s: float = math.inf
    #: number of ended trainers that are kept in full; of earlier ones only the outcome is kept
    ended_kept: int = sys.maxsize
    #: plans are made at multiples of this (Huawei's f); 0: at every event that changes the problem
    decide_every_s: float = 0.0
    packing: Packing | None = None  #: chooses the order in which growing trainers take free nodes; None: as submitted
    typed: bool = False  #: the planner can tell types of nodes apart; otherwise all nodes count as alike
    timed: bool = False  #: problems include how long trainers have trained and what is left, for planners that use it
    priors: Priors = ON_SUMMIT  #: how trainers are expected to scale until those of the pool have been measured

    @property
    def follows_work(self) -> bool:
        """Whether plans depend on how far trainers have got."""
        return self.timed or self.objective is mean_completion_time

    def __post_init__(self) -> None:
        if not self.t_fwd_s > 0:
            raise UserError(f"t_fwd_s must be greater than 0, got {self.t_fwd_s}")
        if not 0 <= self.decide_every_s < math.inf:
            raise UserError(f"decide_every_s must be 0 or more and finite, got {self.decide_every_s}")
        if not self.longest_wait_s > 0:
            raise UserError(f"longest_wait_s must be greater than 0, got {self.longest_wait_s}")
        if self.max_parallel_trainers is not None and self.max_parallel_trainers < 1:
            raise UserError(f"max_parallel_trainers must be at least 1, got {self.max_parallel_trainers}")


@dataclass(eq=False)
class State:
    """The complete state of a coordinator, without its configuration: plain data in a fixed order, so that the same
    events give the same bytes wherever it is written."""

    trainers: dict[TrainerId, Trainer] = field(default_factory=dict)  #: in the order of submission
    past: dict[TrainerId, Outcome] = field(default_factory=dict)  #: trainers that are no longer kept in full
    studies: dict[StudyId, Study] = field(default_factory=dict)
    pool: PoolState = field(default_factory=PoolState)
    blame: BlameState = field(default_factory=BlameState)
    plan_id: PlanId = NO_PLAN
    problem: Problem | None = None  #: the last one
    plan: Plan | None = None  #: the last one
    settled: bool = False  #: the answer to ``problem`` was to change nothing
    solving: bool = False  #: a plan is being made
    asked_s: float = 0.0  #: when the last plan was asked for
    outdated: str = ""  #: why the curves in the last problem no longer hold; "": they do
    awaited: bool = False  #: a periodic decision is being made
    decided_s: float = 0.0  #: when the last one was due
    draining: bool = False
    reopened: int = 0  #: how often the pool came up again after a drain
    costs: RescaleCosts = field(default_factory=lambda: RescaleCosts(KEPT_OF_POOL))
    priors: Priors = ON_SUMMIT
    usage: Usage = field(default_factory=Usage)
    arrivals: Arrivals = field(default_factory=Arrivals)
    aging: Aging = field(default_factory=Aging)
    nodes_seen: NodesSeen = field(default_factory=NodesSeen)
    changes: Changes = field(default_factory=Changes)
    losses: Losses = field(default_factory=Losses)
    now_s: float = 0.0
