"""What was missed while a pilot was away, because its connection had closed or the coordinator was restarted.

Messages of either side may be lost with a connection. When an agent is back, it first sends its queued messages; after
that, what its ``Hello`` said about its workers is compared with what the core believed at that time. Only what has not
changed since is considered: everything else has been answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pilot.core.commands import DissolveGroup, StopWorker
from pilot.core.coordinator import Coordinator
from pilot.core.events import Event, ExitCause, GroupBroken, WorkerExited, WorkerReady
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.core.trainer.trainer import Group, Trainer, Worker, WorkerPhase
from pilot.protocol import wire
from pilot.service.agents.pending import Given, PendingCommands


@dataclass(frozen=True, slots=True)
class Says:
    """What an agent says about one of its workers. ``generation`` is the one in which it trains; 0: none."""

    uid: str
    generation: Generation
    ready: bool


@dataclass(frozen=True, slots=True)
class Believed:
    """What the core believed about a worker and its groups when its pilot came back."""

    worker: Worker
    group: Group | None
    forming: Group | None


class Rejoined:
    """The comparison for one pilot that came back at ``now_s``. Created then, evaluated a little later."""

    def __init__(
        self, core: Coordinator, pending: PendingCommands, node: NodeId, hello: wire.Hello, now_s: float
    ) -> None:
        self._core = core
        self._pending = pending
        self._node = node
        self._now_s = now_s
        self._says = {TrainerId(name): Says(uid, Generation(g), ready) for name, uid, g, _step, ready in hello.workers}
        here = [t for t in core.trainers.values() if node in t.workers]
        self._believed = {t.id: Believed(t.workers[node], t.group, t.forming) for t in here}

    def strays(self) -> list[DissolveGroup | StopWorker]:
        """Orders that end what should not be running there: unknown workers, dissolved generations."""
        out: list[DissolveGroup | StopWorker] = []
        for name, said in self._says.items():
            trainer = self._core.trainers.get(name)
            if trainer is None or said.uid != trainer.spec.uid or self._node not in trainer.workers:
                out.append(StopWorker(name, self._node, "no trainer of this pool needs it"))
            elif said.generation and said.generation not in _living(trainer):
                why = "it was dissolved while its pilot was not connected"
                out.append(DissolveGroup(name, said.generation, (self._node,), why))
        return out

    def missed(self) -> list[Event]:
        """Events that happened on it while it was away."""
        out: list[Event] = []
        for name, believed in self._believed.items():
            trainer = self._core.trainers.get(name)
            if trainer is not None and trainer.workers.get(self._node) is believed.worker:
                out += self._of_worker(trainer, believed)
        return out

    def unanswered(self) -> list[Given[Any]]:
        """Earlier orders to repeat: agents answer a repeated order with its completion."""
        return self._pending.on(self._node, self._now_s)

    def _of_worker(self, trainer: Trainer, believed: Believed) -> list[Event]:
        said = self._says.get(trainer.id)
        if said is None or said.uid != trainer.spec.uid:
            return self._gone(trainer, believed.worker)
        out: list[Event] = []
        if believed.worker.phase is WorkerPhase.STARTING and said.ready:
            out.append(WorkerReady(trainer.id, self._node))
        forming, group = believed.forming, believed.group
        broken = "a member's connection was lost"
        if forming is not None and forming is trainer.forming and self._node in forming.members:
            out.append(GroupBroken(trainer.id, forming.generation, f"{broken} while it formed"))
        if group is None or group is not trainer.group or self._node not in group.members:
            return out
        if said.generation != group.generation:
            out.append(GroupBroken(trainer.id, group.generation, f"{broken}, and its rank is gone"))
        return out

    def _gone(self, trainer: Trainer, worker: Worker) -> list[Event]:
        """The agent has no such worker. (One that is to be started may not have been ordered yet.)"""
        if (trainer.id, self._node) in self._pending.starting:
            return []
        cause = ExitCause.STOPPED if worker.phase is WorkerPhase.STOPPING else ExitCause.DIED
        return [WorkerExited(trainer.id, self._node, cause, "it ended while its pilot was not connected")]


def _living(trainer: Trainer) -> list[Generation]:
    return [group.generation for group in (trainer.group, trainer.forming) if group is not None]
