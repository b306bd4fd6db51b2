"""The events that were missed while a pilot was away, because its connection had closed or the coordinator restarted.

Messages of either side may be lost with a connection. When an agent is back, it first sends its queued messages; after
that, the workers in its ``Hello`` are compared with those that the core believed in at that time. Only workers and
groups that have not changed since are considered: everything else has been answered.
"""

from __future__ import annotations

from typing import Any

from pilot.core.commands import DissolveGroup, StopWorker
from pilot.core.coordinator import Coordinator
from pilot.core.events import Event, ExitCause, GroupBroken, WorkerExited, WorkerReady
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.core.trainer.trainer import Group, Trainer, Worker, WorkerPhase
from pilot.protocol import wire
from pilot.service.agents.pending import Given, PendingCommands

Believed = tuple[Worker, Group | None, Group | None]
"""A worker, and its trainer's training and forming groups, when its pilot came back."""


class Rejoined:
    """The comparison for one pilot that came back at ``now_s``. Created then, evaluated a little later.

    ``_reported`` has the uid of each worker's trainer, the generation in which it trains (0: none), and whether it is
    ready.
    """

    def __init__(
        self, core: Coordinator, pending: PendingCommands, node: NodeId, hello: wire.Hello, now_s: float
    ) -> None:
        self._core = core
        self._pending = pending
        self._node = node
        self._now_s = now_s
        self._reported = {TrainerId(name): (uid, Generation(g), ready) for name, uid, g, _step, ready in hello.workers}
        here = [trainer for trainer in core.trainers.values() if node in trainer.workers]
        self._believed: dict[TrainerId, Believed] = {t.id: (t.workers[node], t.group, t.forming) for t in here}

    def strays(self) -> list[DissolveGroup | StopWorker]:
        """Orders that end what should not be running there: unknown workers, dissolved generations."""
        out: list[DissolveGroup | StopWorker] = []
        for name, (uid, generation, _) in self._reported.items():
            trainer = self._core.trainers.get(name)
            if trainer is None or uid != trainer.spec.uid or self._node not in trainer.workers:
                out.append(StopWorker(name, self._node, "no trainer of this pool needs it"))
            elif generation and all(g is None or g.generation != generation for g in (trainer.group, trainer.forming)):
                why = "it was dissolved while its pilot was not connected"
                out.append(DissolveGroup(name, generation, (self._node,), why))
        return out

    def missed(self) -> list[Event]:
        """Events that happened on it while it was away."""
        out: list[Event] = []
        for name, believed in self._believed.items():
            trainer = self._core.trainers.get(name)
            if trainer is not None and trainer.workers.get(self._node) is believed[0]:
                out += self._missed_of(trainer, *believed)
        return out

    def unanswered(self) -> list[Given[Any]]:
        """Earlier orders to repeat: agents answer a repeated order with its completion."""
        return self._pending.on(self._node, self._now_s)

    def _missed_of(self, trainer: Trainer, worker: Worker, group: Group | None, forming: Group | None) -> list[Event]:
        uid, generation, ready = self._reported.get(trainer.id, (None, 0, False))
        if uid != trainer.spec.uid:
            return self._gone(trainer, worker)
        out: list[Event] = []
        if worker.phase is WorkerPhase.STARTING and ready:
            out.append(WorkerReady(trainer.id, self._node))
        broken = "a member's connection was lost"
        if forming is not None and forming is trainer.forming and self._node in forming.members:
            out.append(GroupBroken(trainer.id, forming.generation, f"{broken} while it formed"))
        trains = group is not None and group is trainer.group and self._node in group.members
        if group is not None and trains and group.generation != generation:
            out.append(GroupBroken(trainer.id, group.generation, f"{broken}, and its rank is gone"))
        return out

    def _gone(self, trainer: Trainer, worker: Worker) -> list[Event]:
        """The agent has no such worker. (One that is to be started may not have been ordered yet.)"""
        if (trainer.id, self._node) in self._pending.starting:
            return []
        cause = ExitCause.STOPPED if worker.phase is WorkerPhase.STOPPING else ExitCause.DIED
        return [WorkerExited(trainer.id, self._node, cause, "it ended while its pilot was not connected")]
