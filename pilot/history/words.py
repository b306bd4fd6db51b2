"""Numbers and changes in readable form."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pilot.core.ids import NodeId
from pilot.protocol.pool_status import SetAsideStatus
from pilot.submission.seldom import IN_ROUNDS

LEAST = 1e-6
"""A smaller amount is not told exactly."""

NAMED = 4
"""How many nodes to name in a sentence; the others are only counted."""

SCHEDULERS = {"slurm": "Slurm", "pbspro": "PBS", "lsf": "LSF"}


def counted(number: int, what: str) -> str:
    """``1 step``, ``2,400 steps``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def node_count(nodes: int) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{nodes} node{'' if nodes == 1 else 's'}"


def pilots_words(pilots: Mapping[str, int] | None) -> str:
    """How many pilots are kept, of each type if there are types; None: as many as are useful."""
    if pilots is None:
        return "as many pilots as the trainers can use"
    return " and ".join(counted(count, f"{name} pilot" if name else "pilot") for name, count in pilots.items())


def node_names(nodes: Sequence[NodeId]) -> str:
    """The first few by name, then how many more there are."""
    if len(nodes) <= NAMED:
        return ", ".join(nodes)
    return f"{', '.join(nodes[:NAMED])} and {len(nodes) - NAMED} more"


def plan_change(count: int, before: int) -> str:
    """The change for a trainer that a plan gives ``count`` nodes, in words."""
    return f"gets {node_count(count)} by plan, had {before}"


def amount(value: float) -> str:
    """A non-negative number to three digits, never with an exponent: ``0.0025``, ``3.14``, ``1,240``."""
    if 0 < value < LEAST:
        return f"less than {LEAST:f}"
    if value >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 or not value else f"{value:.6f}".rstrip("0")


def duration(seconds: float) -> str:
    """A duration in at most six characters, in its two largest units: ``45s``, ``12m30s``, ``3h05m``, ``2d04h``."""
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole // 3600, whole // 60
    if days:
        return f"{days}d{hours % 24:02}h"
    if hours:
        return f"{hours}h{minutes % 60:02}m"
    return f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"


def round_words(metrics: Mapping[str, float | None]) -> str:
    """The round of a trainer that trains in rounds, and what the last one took; "" for others."""
    round_, exchange_s, step_s = map(metrics.get, IN_ROUNDS)
    if round_ is None or exchange_s is None or step_s is None:
        return ""
    return f"round {round_:,.0f}: exchange {amount(exchange_s)} s, inner step {amount(step_s)} s"


def aside_words(aside: SetAsideStatus) -> str:
    """Which node is not used for a while, for how long, and why."""
    whom = aside.trainer or "all trainers"
    return f"{aside.node} is set aside for {whom} for {duration(aside.left_s)}: {aside.reason}"


def expected_start(scheduler: str, unix_s: float | None) -> str:
    """When a scheduler expects a job to start; "" if that is not known."""
    return "" if unix_s is None else f"{SCHEDULERS.get(scheduler, scheduler)} expects {_moment(unix_s)}"


def _moment(unix_s: float) -> str:
    """The time of day, with the date unless it is today."""
    then, now = time.localtime(unix_s), time.localtime()
    return time.strftime("%H:%M" if then[:3] == now[:3] else "%b %d, %H:%M", then)
