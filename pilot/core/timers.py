"""Events that are due by time alone. A driver, live or simulated, asks which are due and posts them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pilot.core.events import (
    ArrivalsDue,
    BudgetDue,
    DecisionDue,
    NodeRetried,
    ProfileDue,
)
from pilot.core.plan.arrivals import Arrivals
from pilot.core.pool.blame import Blame
from pilot.core.study.events import (
    ReservationDue,
    StudyDue,
)
from pilot.core.study.studies import Studies
from pilot.core.trainer.budget import Usage
from pilot.core.trainer.trainer import Trainer

Due = ArrivalsDue | BudgetDue | DecisionDue | NodeRetried | ProfileDue | ReservationDue | StudyDue


@dataclass(frozen=True, slots=True)
class Timers:
    """``usage``: of the pool, if its budget is to be looked at; ``trainers``: those that are open; ``arrivals_s``: see
    :class:`pilot.core.config.CoordinatorConfig`; ``decision_s``: when the cadence is due."""

    blame: Blame
    arrivals: Arrivals
    arrivals_s: float
    usage: Usage | None
    trainers: list[Trainer]
    decision_s: float
    studies: Studies

    def due(self, now_s: float) -> list[Due]:
        """The events that are due by ``now_s``: nodes to use again, trainers to plan for or to measure on their next
        count, budgets to check.
        """
        return [*self.blame.due(now_s), *(event for at_s, event in self._all() if at_s <= now_s)]

    def due_s(self) -> float:
        """When the next event is due if nothing else happens; nothing waits for nodes that can be used again."""
        return min(at_s for at_s, _ in self._all())

    def _all(self) -> Iterator[tuple[float, Due]]:
        yield self.arrivals.due_s(self.arrivals_s), ArrivalsDue()
        for trainer in self.trainers:  # of a thousand that wait hardly one is measured: a replay asks at every step
            if trainer.profile.pin is not None:
                yield trainer.profile.by_s, ProfileDue(trainer.id)
        if self.usage is not None:
            yield self.usage.due_s(), BudgetDue()
        for trainer in self.trainers:
            if trainer.usage.budget_s is not None and not trainer.stops:
                yield trainer.usage.due_s(), BudgetDue(trainer.id)
        yield from self.studies.due()
        yield self.decision_s, DecisionDue()
