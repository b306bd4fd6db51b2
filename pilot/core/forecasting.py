"""When trainers that wait are expected to start. No plan depends on it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pilot.core.curves.curve import Curve
from pilot.core.ids import TrainerId
from pilot.core.plan.aging import SHARE
from pilot.core.plan.prognosis import Expected, Job, Prognosis, forecast
from pilot.core.plan.remaining import remaining, usual_s
from pilot.core.planning import Planning
from pilot.core.trainer.trainer import Trainer


class Forecasting(Planning):
    """The trainers that wait, and when they are expected to start."""

    def prognoses(self, now_s: float) -> dict[TrainerId, Prognosis]:
        """The prognosis for each trainer that waits, in the order of submission; none while the pool drains."""
        there = list(self._registry.plannable())
        usable = self.pool.usable - self._studies.reserved
        nodes = self.nodes_seen.expected(usable)
        running = sum(len(trainer.target) >= trainer.spec.min_nodes for trainer in there)
        if self.draining or running == len(there):
            return {}
        usual_most = max(1, round(running * nodes(math.inf) / max(1, usable)))
        most = self.config.max_parallel_trainers or usual_most
        expected = Expected(nodes, most, self.config.t_fwd_s, self.changes.calm_s(now_s))
        return forecast(list(self._jobs(now_s, there, most)), expected)

    def _jobs(self, now_s: float, there: list[Trainer], most: int) -> Iterator[Job]:
        weights, usual = self._weights(there), usual_s(now_s, [*self.trainers.values()])
        turns_s = self._turns_in_s(now_s, there, most)
        for trainer in there:
            left, curve = remaining(now_s, trainer, usual), trainer.measured.curve
            single = curve.single_node_rate()
            yield Job(
                self._candidate(trainer, trainer.spec.max_nodes, weights),
                curve.scaled(1.0 / single) if single > 0 else Curve.proportional(),
                left.seconds if left is not None else math.inf,
                left is None or left.rough,
                turns_s.get(trainer.id, math.inf),
                not trainer.unfit_types(self.pool) or trainer.room(self.pool) >= trainer.spec.min_nodes,
            )

    def _turns_in_s(self, now_s: float, there: list[Trainer], most: int) -> dict[TrainerId, float]:
        """In how many seconds each trainer that waits has its turn at the latest, about."""
        longest_s, aging = self.config.longest_wait_s, self.aging
        least = {trainer.id: trainer.spec.min_nodes for trainer in there}
        waiting = [name for name in aging.since_s if name in least]
        if not waiting or math.isinf(longest_s):
            return {}
        mean = sum(least[name] for name in waiting) / len(waiting)
        at_once = max(1, int(min(self.pool.usable * SHARE / mean, most * SHARE)))
        ends_s = sorted(until_s - now_s for until_s in aging.until_s.values() if until_s > now_s)[-at_once:]
        first_s = ends_s[0] if len(ends_s) == at_once else 0.0
        overdue_s = {name: max(first_s, aging.since_s[name] + longest_s - now_s) for name in waiting}
        return {name: overdue_s[name] + place // at_once * longest_s for place, name in enumerate(waiting)}
