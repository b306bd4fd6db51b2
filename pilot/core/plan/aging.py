"""Turns: a trainer that has waited for too long runs on its minimum for as long as it waited, whatever plans prefer.

Plans maximise an objective, so a trainer that is worth little may wait for as long as there are better ones, and behind
a long trainer that needs the whole pool all others wait. A trainer that has waited for ``longest_s`` is *overdue*. As
soon as it holds its minimum, its *turn* begins: it keeps that for ``longest_s`` (the bound of what it has waited), and
plans may give it more. Turns come in the order of waiting, the longest first. The next trainer in order is not passed
over for a smaller one, unless the pool has fewer nodes than it needs, so that large ones are not passed over for ever.

Turns have at most :data:`SHARE` of the nodes, and of the trainers that may run at once; but one may always begin. What
remains is planned for by value and in the order of submission, so that a long queue of equal trainers is not sliced
into turns. Nor is a queue that starts all at once, in a pool that was empty for long: there the first turns count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from pilot.core.ids import TrainerId
from pilot.core.trainer.trainer import Trainer

LONGEST_WAIT_S = 4 * 3600.0
"""The usual bound."""

SHARE = 0.25
"""The largest part of a pool that turns take."""


@dataclass(slots=True)
class Aging:
    """Since when each trainer has been without enough nodes to run (rising), and until when turns last. Whoever was due
    by ``checked_s`` has been planned for."""

    since_s: dict[TrainerId, float] = field(default_factory=dict)
    until_s: dict[TrainerId, float] = field(default_factory=dict)
    checked_s: float = 0.0

    def note(self, now_s: float, trainer: Trainer, longest_s: float) -> None:
        """Record whether ``trainer`` waits now. One that is held, shelved or has ended does not."""
        rests = not (trainer.open and trainer.plannable)
        waits = not rests and len(trainer.target) < trainer.spec.min_nodes
        if waits:
            self.since_s.setdefault(trainer.id, now_s)
        if rests:
            self.until_s.pop(trainer.id, None)
        if not waits and self.since_s.pop(trainer.id, math.inf) + longest_s <= now_s and not rests:
            self.until_s[trainer.id] = now_s + longest_s

    def restart(self, now_s: float) -> None:
        """Let all begin to wait now: the time in which no trainer could have nodes does not count."""
        self.since_s = dict.fromkeys(self.since_s, now_s)

    def due_s(self, longest_s: float) -> float:
        """When the next trainer is overdue, or the next turn is over."""
        overdue = (since_s + longest_s for since_s in self.since_s.values())
        ends = min((until_s for until_s in self.until_s.values() if until_s > self.checked_s), default=math.inf)
        return min(ends, next((at_s for at_s in overdue if at_s > self.checked_s), math.inf))

    def pass_turns(self, now_s: float, longest_s: float) -> str:
        """Return why another plan is needed ("": nobody has become overdue, and no turn is over)."""
        due, self.checked_s = self.due_s(longest_s) <= now_s, now_s
        return "a trainer has waited for long, or its turn is over" if due else ""

    def turns(
        self,
        now_s: float,
        longest_s: float,
        trainers: Mapping[TrainerId, Trainer],
        nodes: int,
        most: float = math.inf,
        able: Callable[[Trainer], bool] = lambda _: True,
    ) -> list[TrainerId]:
        """Who of ``trainers`` that are ``able`` has a turn or may begin one, in a pool of ``nodes`` in which ``most``
        run at once."""
        begun = (name for name, until_s in self.until_s.items() if until_s > now_s)
        overdue = takewhile(lambda name: self.since_s[name] + longest_s <= now_s, self.since_s)
        found, taken = list[TrainerId](), 0
        for name in dict.fromkeys((*begun, *overdue)):
            if name not in trainers or not able(trainers[name]):
                continue
            least = trainers[name].spec.min_nodes
            if found and (taken + least > nodes * SHARE or len(found) + 1 > most * SHARE):
                break
            if least <= nodes:
                found, taken = [*found, name], taken + least
        return found


def admit(
    first: list[Trainer], turns: Sequence[TrainerId], trainers: Mapping[TrainerId, Trainer], most: float
) -> list[Trainer]:
    """``first`` with those whose turn it is, at most ``most``, in the order of submission: others make room, the last
    ones first."""
    chosen = dict.fromkeys(trainer.id for trainer in first)
    late = [name for name in turns if name not in chosen]
    if not late:
        return first
    others = [name for name in chosen if name not in turns]
    kept = others[: max(0, int(min(most - len(turns), len(others))))]
    chosen = dict.fromkeys((*turns, *kept))
    return [trainer for trainer in trainers.values() if trainer.id in chosen]
