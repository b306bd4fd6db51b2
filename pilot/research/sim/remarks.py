"""What to know when reading a replay's numbers, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from pilot.history.words import amount
from pilot.research.sim.metrics import Summary

TOLD = 0.001
"""Shares that differ by less are the same to readers."""


def remarks(summary: Summary) -> list[str]:
    """The sentences of one replay; none if its numbers mean what they seem to."""
    return [*_of_working_time(summary), *_of_minimums(summary)]


def _of_working_time(summary: Summary) -> Iterator[str]:
    working = summary.working
    u = working.efficiency
    if u is not None and summary.efficiency is not None and abs(u - summary.efficiency) >= TOLD:
        yield (
            f"There was work in {amount(working.hours)} of {amount(summary.reached_h)} h. U of that time alone is"
            f" {u:.1%}: it had {amount(working.eq_nodes)} nodes on average, and the whole time"
            f" {amount(summary.eq_nodes)}, with which A_s counts."
        )


def _of_minimums(summary: Summary) -> Iterator[str]:
    working = summary.working
    if working.shared_efficiency is None:
        return
    why = f"{amount(working.eq_nodes)} dedicated nodes are worth less than as many on average"
    if working.min_nodes > working.eq_nodes:
        why = f"{amount(working.eq_nodes)} dedicated nodes never run a trainer that needs at least {working.min_nodes}"
    yield (
        f"U can exceed 100%, because {why}. Against the same node-hours on more nodes at a time, for less time, U is"
        f" {working.shared_efficiency:.1%}."
    )
