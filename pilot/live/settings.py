"""How decisions are made in one pool: what ``pilot up`` was told, in the journal's header, so that a replay knows
it."""

from __future__ import annotations

import importlib
from typing import Any

import msgspec

from pilot import planners
from pilot.core.coordinator import CoordinatorConfig
from pilot.core.errors import UserError
from pilot.core.objective import Objective, named_objective, per_node_value
from pilot.core.pool import NODE_ORDERS


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Plain values only.

    Parameters
    ----------
    planner, solver : see :func:`pilot.planners.make`
    solve_limit_s : what a plan may take; then the best one known counts
    objective : a name of ``pilot.core.objective``, or ``module:function`` of (trainer, nodes) → value per second
    t_fwd_s, max_parallel_trainers : see ``CoordinatorConfig``
    node_order : a name of ``pilot.core.pool.NODE_ORDERS``
    """

    planner: str = planners.NAMES[0]
    solver: str = planners.SOLVERS[0]
    solve_limit_s: float = 10.0
    objective: str = "scaling-efficiency"
    t_fwd_s: float = 120.0
    max_parallel_trainers: int = 10
    node_order: str = "hostname"

    def config(self) -> CoordinatorConfig:
        """The core's configuration; :class:`UserError` where a name is unknown or a number out of range."""
        if self.planner not in planners.NAMES:
            raise UserError(f"unknown planner {self.planner!r}; there are: {', '.join(planners.NAMES)}")
        if self.solver not in planners.SOLVERS:
            raise UserError(f"unknown solver {self.solver!r}; there are: {', '.join(planners.SOLVERS)}")
        if not self.solve_limit_s > 0:
            raise UserError(f"the time limit of a solve must be greater than 0, got {self.solve_limit_s}")
        if self.node_order not in NODE_ORDERS:
            raise UserError(f"unknown node order {self.node_order!r}; there are: {', '.join(NODE_ORDERS)}")
        return CoordinatorConfig(
            t_fwd_s=self.t_fwd_s,
            max_parallel_trainers=self.max_parallel_trainers,
            objective=objective_of(self.objective),
            node_order=NODE_ORDERS[self.node_order],
        )


def settings_of(plain: dict[str, Any]) -> Settings:
    """The settings in a journal's header."""
    return msgspec.convert(plain, Settings)


def objective_of(name: str) -> Objective:
    """A shipped objective by name, or a user's function by ``module:function``."""
    if ":" not in name:
        return named_objective(name)
    module, _, function = name.partition(":")
    try:
        return per_node_value(getattr(importlib.import_module(module), function))
    except (ImportError, AttributeError) as error:
        raise UserError(f"cannot load the objective {name!r}: {error}") from None
