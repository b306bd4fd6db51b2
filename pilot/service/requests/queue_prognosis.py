"""When trainers that wait for nodes are expected to start, and in what order.

Trainers are admitted in the order of submission, and those that fit on the free nodes start; one that needs fewer nodes
may start before an earlier one. Nodes become free when the trainers that have them end. Everything else is left out:
nodes that come and go, and nodes that running trainers give away because a plan prefers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from pilot.core.coordinator import Coordinator
from pilot.core.trainer.trainer import Phase, Trainer
from pilot.history.monitor import Monitor
from pilot.history.words import counted, duration
from pilot.protocol.remaining_work import Goal


@dataclass(frozen=True, slots=True)
class Need:
    """A trainer that has ``nodes`` nodes or waits for them, and how long it then trains; None: not known."""

    name: str
    nodes: int
    left_s: float | None


@dataclass(frozen=True, slots=True)
class Prognosis:
    """A trainer's ``place`` among ``waiting`` ones, from 1, and in how many seconds it is expected to start. None: that
    cannot be foretold, for lack of nodes or because it is not known how long trainer ``endless`` will run.
    """

    place: int
    waiting: int
    starts_in_s: float | None
    endless: str = ""

    def at_s(self, now_s: float) -> float | None:
        """When it is expected to start, on the clock that shows ``now_s``."""
        return None if self.starts_in_s is None else now_s + self.starts_in_s

    def sentence(self) -> str:
        """Both in words."""
        place = f"number {self.place} of {counted(self.waiting, 'waiting trainer')}"
        if self.starts_in_s:
            return f"{place}, expected to start in about {duration(self.starts_in_s)}"
        if self.starts_in_s is None and self.endless:
            return f"{place}, start unknown: it is not known how long {self.endless} will run"
        return place


def forecast(free: int, room: int, running: Sequence[Need], waiting: Sequence[Need]) -> dict[str, Prognosis]:
    """The prognosis for each of ``waiting``, which are in their order.

    Parameters
    ----------
    free : how many nodes are free now
    room : how many more trainers may run at once
    """
    ends = [(need.left_s, need.nodes) for need in running if need.left_s is not None]
    heapify(ends)
    total = free + sum(need.nodes for need in running)
    starts_s, queue, at_s = {}, list(waiting), 0.0
    while queue:
        for need in [*queue]:
            if free < 1 or room < 1:
                break
            if need.nodes <= free:
                free, room, starts_s[need.name] = free - need.nodes, room - 1, at_s
                queue.remove(need)
                if need.left_s is not None:
                    heappush(ends, (at_s + need.left_s, need.nodes))
        if not ends:
            break
        at_s, freed = heappop(ends)
        free, room = free + freed, room + 1
    started = [need for need in waiting if need.name in starts_s]
    endless = next((need.name for need in (*running, *started) if need.left_s is None), "")
    return {
        need.name: Prognosis(place, len(waiting), starts_s.get(need.name), endless if need.nodes <= total else "")
        for place, need in enumerate(waiting, 1)
    }


def prognoses(core: Coordinator, monitor: Monitor) -> dict[str, Prognosis]:
    """The prognosis for each trainer that waits for nodes, by name; none while the pool drains."""
    if core.draining:
        return {}
    waiting = [trainer for trainer in core.trainers.values() if trainer.phase is Phase.QUEUED and not trainer.held]
    running = [trainer for trainer in core.trainers.values() if trainer.workers or trainer.target]
    free = sum(node not in core.pool.aside for node in core.pool.available())
    room = core.config.max_parallel_trainers - len(running)
    return forecast(free, room, list(_needs(monitor, running)), list(_needs(monitor, waiting)))


def _needs(monitor: Monitor, trainers: Iterable[Trainer]) -> Iterable[Need]:
    for trainer in trainers:
        nodes = len({*trainer.workers, *trainer.target}) or trainer.spec.min_nodes
        yield Need(trainer.id, nodes, _left_s(monitor, trainer, nodes))


def _left_s(monitor: Monitor, trainer: Trainer, nodes: int) -> float | None:
    """How long ``trainer`` will need ``nodes`` nodes; None if its loop's length or its rate is not known, and while its
    script runs on after the loop.
    """
    if trainer.closing is not None:
        return None if any(worker.alone_s for worker in trainer.workers.values()) else 0.0
    record, measured = monitor.trainers[trainer.id], trainer.measured
    rate = record.samples_per_s if trainer.group is not None else None
    if rate is None and not measured.guessed:
        rate = measured.curve.at(nodes)
    return Goal.of(record.metrics).left_s(trainer.epoch, trainer.step, trainer.samples, rate)
