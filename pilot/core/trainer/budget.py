"""How many node-hours a pool or a trainer has used, and what follows when its budget runs out.

A budget is in node-hours as the site charges them: the time of each node, times the site's charge factor. At 80% a
warning goes out. At its end the pool drains, and a trainer stops: a trainer that is training writes a checkpoint first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HOUR_S = 3600.0
WARNED_AT = 0.8

SLACK_S = 1e-6
"""Allowance for rounding errors in a computed time, in seconds."""


@dataclass(frozen=True, slots=True)
class BudgetState:
    """A ``warning``, or the reason for its ``end``; "" for each that does not apply."""

    warning: str = ""
    end: str = ""


@dataclass(slots=True)
class Usage:
    """Seconds on nodes, summed over the nodes: ``used_s`` until ``since_s``, on ``nodes`` nodes since then. A node of a
    type with another charge factor than the site's counts in proportion.

    ``budget_s`` is what may be used (None: no limit). ``warned``: the warning was given.
    """

    budget_s: float | None = None
    used_s: float = 0.0
    nodes: float = 0.0
    since_s: float = 0.0
    warned: bool = False

    def count(self, now_s: float, nodes: float) -> None:
        """Count ``nodes`` nodes from ``now_s`` on."""
        self.used_s, self.since_s, self.nodes = self.until(now_s), now_s, nodes

    def until(self, now_s: float) -> float:
        """Node-seconds used until ``now_s``."""
        return self.used_s + (now_s - self.since_s) * self.nodes

    def allow(self, budget_s: float | None) -> None:
        """Set the budget for its total use."""
        self.budget_s, self.warned = budget_s, False

    @property
    def spent(self) -> bool:
        """Whether the budget was used up when last counted."""
        return self.budget_s is not None and self.used_s + SLACK_S * max(1, self.nodes) >= self.budget_s

    def due_s(self) -> float:
        """When the next threshold of the budget is reached if the number of nodes does not change."""
        if self.budget_s is None:
            return math.inf
        left_s = (1.0 if self.warned else WARNED_AT) * self.budget_s - self.used_s
        if left_s <= 0:
            return self.since_s
        return self.since_s + left_s / self.nodes if self.nodes else math.inf

    def check(self, now_s: float, charge_factor: float) -> BudgetState:
        """Check the use so far against the budget. A warning is given once."""
        if self.budget_s is None:
            return BudgetState()
        used_s = self.until(now_s) + SLACK_S * max(1, self.nodes)
        budget = f"its budget of {hours(self.budget_s, charge_factor):g} {unit(charge_factor)}"
        if used_s >= self.budget_s:
            return BudgetState(end=f"{budget} is used up")
        if used_s < WARNED_AT * self.budget_s or self.warned:
            return BudgetState()
        self.warned = True
        return BudgetState(warning=f"{WARNED_AT:.0%} of {budget} is used")


def seconds(node_hours: float | None, charge_factor: float) -> float | None:
    """The node-seconds in a budget of charged ``node_hours``; None: unlimited."""
    if node_hours is None or charge_factor == 0:
        return None
    return node_hours * HOUR_S / charge_factor


def hours(node_seconds: float, charge_factor: float) -> float:
    """Charged node-hours."""
    return node_seconds / HOUR_S * charge_factor


def unit(charge_factor: float) -> str:
    """The unit to print after a number of charged node-hours."""
    return "node-hours" if charge_factor == 1 else f"charged node-hours ({charge_factor:g} for an hour on a node)"
