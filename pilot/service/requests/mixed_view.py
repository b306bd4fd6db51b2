"""What users are told of nodes that differ: by type, by the shares of samples that they get, and which are slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from pilot.core.coordinator import Coordinator
from pilot.core.ids import NodeId
from pilot.core.trainer.trainer import Trainer
from pilot.protocol.fields import StepTimes
from pilot.service.agents.roster import Roster

UNLIKE = 1.05
"""Shares differ if the largest is this many times the smallest."""

TOLD = 0.03
"""A limit of shares is told if it costs at least this part of a step's time."""


def by_type(core: Coordinator, nodes: Iterable[NodeId]) -> dict[str, int]:
    """How many of ``nodes`` are of each type, slow ones apart; empty if all nodes that the pool had are alike."""
    alike = len(core.pool.types) < 2 and not core.pool.slow
    return {} if alike else dict(sorted(Counter(map(core.pool.kind_of, nodes)).items()))


def _newest(roster: Roster | None, trainer: Trainer) -> dict[NodeId, StepTimes]:
    """The last measurement of each member of the trainer's group."""
    members = trainer.group.members if trainer.group is not None and roster is not None else ()
    timed = {node: roster.pilots[node].timed for node in members if roster and node in roster.pilots}
    return {node: each[1] for node, each in timed.items() if each and each[0] == trainer.id and each[1].steps}


def shares(roster: Roster | None, trainer: Trainer) -> dict[str, float]:
    """The samples of a step on each node, as last measured; empty if they do not differ, or one is not known."""
    found: dict[str, float] = {node: t.samples / t.steps for node, t in _newest(roster, trainer).items()}
    complete = trainer.group is not None and len(found) == len(trainer.group.members) > 1
    return found if complete and max(found.values()) > UNLIKE * min(found.values()) else {}


def of_shares(roster: Roster | None, trainer: Trainer) -> Iterator[str]:
    """What it costs that a share may not grow further, and how to allow that."""
    cost = max((times.limit_loss for times in _newest(roster, trainer).values()), default=0.0)
    if cost >= TOLD:
        yield (
            f"{cost:.0%} of its time is spent waiting for its slowest nodes, because a fast node's share of a batch may"
            ' grow by a quarter at most; micro_batch_size= or shares="free" in its loader allows more'
        )


def slow_nodes(core: Coordinator, roster: Roster) -> Iterator[str]:
    """Which nodes are slow for their type, and what to do."""
    for node, slow in core.pool.slow.items():
        job = roster.pilots[node].job if node in roster.pilots else None
        leave_out = f"; to leave it out, end its job {job}" if job else ""
        of = f"other {name} nodes" if (name := core.pool.type_of.get(node)) else "other nodes"
        yield f"{node} counts as slow: it did {slow.share:.0%} of what {of} do for {slow.trainer}{leave_out}"
