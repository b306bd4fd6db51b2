"""The rates that trainers report in a replay whose core does not know their curves.

Live, the leader of a group reports once a second for as long as it trains. A replay has a report each :data:`EVERY_S`
at first and while a count is measured, then less and less often, each :data:`LONGEST_S` (the most that one report
counts for) until the rate is known as well as it will be, and each :data:`SETTLED_S` from then on. A report that stands
for a longer time is the mean of more steps, so it has less noise, and the core knows as much as from the reports that
are left out.

Where nodes have types, a report comes with how fast each node of the group computes, at most once in
:data:`SPEEDS_EVERY_S`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from pilot.core.curves.measured import LONGEST_S
from pilot.core.curves.profile import REPORTS
from pilot.core.events import Progress, SpeedsMeasured
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.core.trainer.trainer import Trainer
from pilot.research.sim.accounting import Account

EVERY_S = 4.0
"""So a rate that does not vary is known 20 s after its group formed and the pause is over: 20 steps of 0.8 s, and some
reports. Live reports come once a second."""

SETTLED_S = 300.0
"""A rate is hardly known better after more than this time: it changes by as much."""

SPEEDS_EVERY_S = 30.0


@dataclass(slots=True)
class _Group:
    """The newest group of a trainer: it has ``made`` reports, the last one at ``since_s``, and has the next at
    ``due_s``. Its nodes may be measured from ``speeds_s`` on."""

    generation: Generation
    since_s: float
    due_s: float
    speeds_s: float
    made: int = 0


@dataclass(slots=True)
class Reports:
    """The reports of all groups.

    ``noise`` : how far a report is off the true rate, one standard deviation of the logarithm, drawn by ``random``
    ``type_of`` : the place of a node's type in accounts' speeds; empty: all nodes are alike
    """

    noise: float = 0.0
    random: Random = field(default_factory=Random)
    type_of: Mapping[NodeId, int] = field(default_factory=dict)
    groups: dict[TrainerId, _Group] = field(default_factory=dict)

    def expect(self, now_s: float, trainer: Trainer) -> None:
        """A group of ``trainer`` that is new reports once its pause is over; one that is measured does so soon."""
        if trainer.group is None:
            return
        known = self.groups.get(trainer.id)
        if known is None or known.generation != trainer.group.generation:
            begins_s = now_s + trainer.spec.rescale_up_s
            speeds_s = known.speeds_s if known is not None else begins_s
            self.groups[trainer.id] = _Group(trainer.group.generation, begins_s, begins_s + EVERY_S, speeds_s)
        elif trainer.profile.pin is not None and known.made >= REPORTS:
            known.due_s = min(known.due_s, now_s + EVERY_S)

    def due_s(self) -> float:
        """When the next report comes; infinite if none does."""
        return min((group.due_s for group in self.groups.values()), default=math.inf)

    def take(
        self, now_s: float, accounts: Mapping[TrainerId, Account], trainers: Mapping[TrainerId, Trainer]
    ) -> list[Progress | SpeedsMeasured]:
        """The reports that have come by ``now_s``."""
        reports: list[Progress | SpeedsMeasured] = []
        for name, group in [item for item in self.groups.items() if item[1].due_s <= now_s]:
            trainer, account = trainers.get(name), accounts.get(name)
            if trainer is None or account is None:
                del self.groups[name]
                continue
            true = account.rate_on(account.held) if trainer.group is not None else 0.0
            if trainer.group is None or not true or account.is_done():
                group.due_s = math.inf
                continue
            noise = self.noise * math.sqrt(EVERY_S / max(EVERY_S, now_s - group.since_s))
            rate = true * math.exp(self.random.gauss(0.0, noise))
            reports.append(Progress(name, group.generation, 0, 0, int(account.done), rate))
            if self.type_of and group.speeds_s <= now_s:
                reports.append(self._speeds(account, group.generation, trainer.group.members))
                group.speeds_s = now_s + SPEEDS_EVERY_S
            group.made, group.since_s = group.made + 1, now_s
            group.due_s = now_s + EVERY_S if trainer.profile.pin is not None else _next_s(now_s, group.made)
        return reports

    def _speeds(self, account: Account, generation: Generation, members: Sequence[NodeId]) -> SpeedsMeasured:
        """How fast each of the ``members`` computes."""
        alone = account.curve.at(1)
        per_s = (
            (node, alone * account.speeds[self.type_of[node]] * math.exp(self.random.gauss(0.0, self.noise)))
            for node in members
        )
        return SpeedsMeasured(account.trainer, generation, tuple(per_s), account.submission.equal_shares)


def _next_s(now_s: float, made: int) -> float:
    """When the next report comes after ``made`` of them. Late ones of all groups come together, in one step of the
    replay."""
    wait_s = EVERY_S * max(1, made + 1 - REPORTS) ** 2
    if wait_s < LONGEST_S:
        return now_s + wait_s
    grid_s = LONGEST_S if made < REPORTS + SETTLED_S / LONGEST_S else SETTLED_S
    return (now_s // grid_s + 1) * grid_s
