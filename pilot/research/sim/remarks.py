"""What to know when reading a replay's numbers, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from pilot.history.words import amount
from pilot.research.sim.metrics import Summary

TOLD = 0.001
"""Values of U that differ by less are the same to readers."""
IDLE_TOLD = 0.01
"""A smaller share of idle node-time is not worth a sentence."""


def remarks(summary: Summary) -> Iterator[str]:
    """The sentences of one replay; none if its numbers mean what they seem to."""
    working, nodes = summary.working, amount(summary.working.eq_nodes)
    if (u := working.efficiency) is not None and abs(u - (summary.efficiency or 0.0)) >= TOLD:
        yield (
            f"There was work in {amount(working.hours)} of {amount(summary.reached_h)} h. U of that time alone is"
            f" {u:.1%}: it had {nodes} nodes on average, and the whole time {amount(summary.eq_nodes)}, with which A_s"
            " counts."
        )
    if (shared := working.shared_efficiency) is not None:
        why = "are worth less than varying ones"
        if working.min_nodes > working.eq_nodes:
            why = f"never run a trainer that needs at least {working.min_nodes}"
        yield (
            f"U can exceed 100%, because {nodes} dedicated nodes {why}. Against the same node-hours on more nodes at a"
            f" time, for less time, U is {shared:.1%}."
        )
    if shares := [f"{share:.1%} because of {bound}" for bound, share in summary.idle.items() if share >= IDLE_TOLD]:
        yield f"Idle node-time: {', '.join(shares)}."
