"""The settings of one pool, as given to ``pilot up``; stored in the journal's header for replays."""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from pilot import planners
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.curves.curve_model import ON_SUMMIT, Normal, Priors
from pilot.core.errors import JournalError, UserError
from pilot.core.ids import TrainerId
from pilot.core.plan.aging import LONGEST_WAIT_S
from pilot.core.plan.arrivals import ARRIVALS_S
from pilot.core.plan.objective import Objective, named_objective, per_node_value
from pilot.core.pool.pool import NODE_ORDER_NAMES, NODE_ORDERS, TOPOLOGY, hostname_order
from pilot.core.pool.topology import Topology
from pilot.core.trainer.spec import TrainerSpec
from pilot.rundir.journal import Configured, Contents, Header
from pilot.site.site_files import prints_to_stderr


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Plain values only."""

    planner: str = planners.NAMES[0]  #: see :func:`pilot.planners.make`
    solver: str = planners.SOLVERS[0]  #: see :func:`pilot.planners.make`
    solve_limit_s: float = 10.0  #: time limit per plan, after which the best one found counts
    objective: str = "scaling-efficiency"  #: see :func:`pilot.service.settings.load_objective`
    t_fwd_s: float = 120.0  #: see ``CoordinatorConfig``
    max_parallel_trainers: int | None = None  #: see ``CoordinatorConfig``
    node_order: str = "hostname"  #: a name of ``pilot.core.pool.pool.NODE_ORDER_NAMES``
    ended_kept: int = 200  #: how many ended trainers are kept in full, and listed; fixed when the pool is first started
    budget: float = 0.0  #: charged node-hours from when the pool comes up; 0: no limit
    longest_wait_s: float = LONGEST_WAIT_S  #: see ``CoordinatorConfig``; 0: no limit
    decide_every_s: float = 0.0  #: plans are made at multiples of it; 0: at every event
    #: mean and deviation of ln a, then of ln b (:mod:`pilot.core.curves.curve_model`), from earlier trainers of the
    #: site; None: there were none
    priors: tuple[float, float, float, float] | None = None

    def config(self) -> CoordinatorConfig:
        """The core's configuration; :class:`UserError` if a name is unknown or a number out of range."""
        if self.planner not in planners.NAMES:
            raise UserError(f"unknown planner {self.planner!r}; there are: {', '.join(planners.NAMES)}")
        if self.solver not in planners.SOLVERS:
            raise UserError(f"unknown solver {self.solver!r}; there are: {', '.join(planners.SOLVERS)}")
        for what, seconds in (("the time limit of a solve", self.solve_limit_s), ("t_fwd_s", self.t_fwd_s)):
            if not 0 < seconds < math.inf:
                raise UserError(f"{what} must be greater than 0 and finite, got {seconds:g}")
        if self.ended_kept < 0:
            raise UserError(f"ended_kept must be 0 or more, got {self.ended_kept}")
        if not 0 <= self.budget < math.inf:
            raise UserError(f"the budget must be 0 or more and finite, got {self.budget:g}")
        if self.node_order not in NODE_ORDER_NAMES:
            raise UserError(f"unknown node order {self.node_order!r}; there are: {', '.join(NODE_ORDER_NAMES)}")
        return CoordinatorConfig(
            t_fwd_s=self.t_fwd_s,
            max_parallel_trainers=self.max_parallel_trainers,
            objective=load_objective(self.objective),
            node_order=NODE_ORDERS.get(self.node_order, hostname_order),
            budget_node_hours=self.budget or None,
            arrivals_s=ARRIVALS_S,
            ended_kept=self.ended_kept,
            timed=self.planner in planners.TIMED,
            typed=self.planner in planners.TYPED,
            longest_wait_s=self.longest_wait_s or math.inf,
            decide_every_s=self.decide_every_s,
            priors=_priors(self.priors),
        )


def _priors(plain: tuple[float, float, float, float] | None) -> Priors:
    if plain is None:
        return ON_SUMMIT
    mean_a, sd_a, mean_b, sd_b = plain
    if not (all(map(math.isfinite, plain)) and sd_a > 0 and sd_b > 0):
        raise UserError(f"priors: two finite means, each with a deviation greater than 0, got {plain}")
    return Priors(Normal(mean_a, sd_a), Normal(mean_b, sd_b))


def settings_of(plain: dict[str, Any]) -> Settings:
    """The settings in a journal's header; :class:`JournalError` if they are not valid."""
    try:
        return msgspec.convert(plain, Settings)
    except msgspec.ValidationError as error:
        raise JournalError(f"damaged header: settings: {error}") from None


def config_of(configured: Configured) -> CoordinatorConfig:
    """The core's configuration of a pool that came up with these settings."""
    site = configured.site
    times = {name: site[name] for name in ("grace_s", "checkpoint_interval_s", "charge_factor") if name in site}
    for name, seconds in times.items():
        if not isinstance(seconds, float | int) or not 0 <= seconds < math.inf:
            raise UserError(f"{name} of the site must be 0 or more and finite, got {seconds}")
    settings = settings_of(configured.settings)
    if len(site.get("node_types") or {}) > 1:
        planners.check_tells_types(settings.planner)
    topology = topology_of(str(site.get("topology") or "")) if settings.node_order == TOPOLOGY else None
    return replace(settings.config(), topology=topology, **times)


def topology_of(pattern: str) -> Topology:
    """The topology by a site's pattern; :class:`UserError` if there is none, or if it is malformed."""
    if not pattern:
        raise UserError("--node-order topology: the site file defines no topology (see docs/admin/types-and-pools.md)")
    return Topology(pattern)


def core_of(header: Header) -> Coordinator:
    """A core as it was when the journal with this header began."""
    first, *later = map(config_of, header.configured)
    return Coordinator(first, [replace(config, ended_kept=first.ended_kept) for config in later])


def fresh_core(contents: Contents) -> Coordinator:
    """A core as it was when the journal began: the decisions of all its segments replay through it."""
    return core_of(contents.header)


def remembering_core(contents: Contents, budget: float | None = None) -> Coordinator:
    """A core that decides the same but forgets no trainer, for a pool's complete history.

    ``budget`` replaces the pool's own each time that it comes up, in charged node-hours.
    """
    configs = [replace(config_of(so), ended_kept=sys.maxsize) for so in contents.header.configured]
    if budget is not None:
        configs = [replace(config, budget_node_hours=budget) for config in configs]
    return Coordinator(configs[0], configs[1:])


_PROBE = TrainerSpec(TrainerId("probe"), max_nodes=1)


def load_objective(name: str) -> Objective:
    """A built-in objective by name, or a user's function (trainer, nodes) → value per second by ``module:function``.

    Raises
    ------
    UserError
        There is no objective of that name, or it cannot be imported.
    """
    if ":" not in name:
        return named_objective(name)
    module, _, function = name.partition(":")
    here = str(Path.cwd())
    sys.path.append(here)  # last, so that nothing in the user's folder shadows a library
    try:
        with prints_to_stderr():
            value = getattr(importlib.import_module(module), function)
    except Exception as error:  # whatever a user's module raises
        raise UserError(f"cannot load the objective {name!r}: {type(error).__name__}: {error}") from None
    finally:
        sys.path.remove(here)
    if not callable(value):
        raise UserError(f"the objective {name!r} is not a function of (trainer, nodes)")
    try:
        with prints_to_stderr():
            float(value(_PROBE, 1))
    except LookupError:
        pass  # it looks trainers up by name, so it knows no made-up one
    except Exception as error:  # a function of other arguments must not fail only when a plan is made
        why = f"{type(error).__name__}: {error}"
        raise UserError(f"the objective {name!r} is not a function of (trainer, nodes): {why}") from None
    valued = per_node_value(value, name)

    def objective(spec: TrainerSpec, curve: Curve) -> Curve:
        with prints_to_stderr():
            return valued(spec, curve)

    return objective
