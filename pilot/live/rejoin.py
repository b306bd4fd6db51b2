"""A pilot that comes back (its connection had closed, or the coordinator was started again): what was missed meanwhile.

Messages of either side may be lost with a connection. What the agent says of its workers is compared with what the core
believes of them, and what is still pending is asked for once more; agents answer a repeated order with its completion.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pilot.core.commands import StartWorker
from pilot.core.coordinator import Coordinator
from pilot.core.events import Event, ExitCause, GroupBroken, WorkerExited, WorkerReady
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.core.trainer import Trainer, Worker, WorkerPhase
from pilot.io.wire import KillGroup, Message, StopProcess
from pilot.live.pending import Pending


@dataclass(frozen=True, slots=True)
class Says:
    """What an agent says of one of its workers. ``generation`` is the one in which it trains, 0: none."""

    trainer: TrainerId
    generation: Generation
    step: int
    ready: bool


def says(workers: Iterable[tuple[str, int, int, bool]]) -> dict[TrainerId, Says]:
    """``Hello.workers`` by trainer."""
    rows = (Says(TrainerId(trainer), Generation(generation), step, up) for trainer, generation, step, up in workers)
    return {row.trainer: row for row in rows}


def missed(core: Coordinator, pending: Pending, node: NodeId, there: dict[TrainerId, Says]) -> list[Event]:
    """What happened to the workers of ``node`` while it was away."""
    out: list[Event] = []
    for trainer in core.trainers.values():
        worker = trainer.workers.get(node)
        if worker is not None:
            out += _of_worker(trainer, worker, node, there.get(trainer.id), pending)
    return out


def strays(core: Coordinator, node: NodeId, there: dict[TrainerId, Says]) -> list[Message]:
    """Ends what runs on ``node`` and should not: workers that nobody knows, generations that were dissolved."""
    out: list[Message] = []
    for said in there.values():
        trainer = core.trainers.get(said.trainer)
        if trainer is None or node not in trainer.workers:
            out.append(StopProcess(said.trainer, "no trainer of this pool needs it"))
        elif said.generation and said.generation not in _living(trainer):
            out.append(KillGroup(said.trainer, said.generation, "it was dissolved while its pilot was not connected"))
    return out


def _living(trainer: Trainer) -> list[Generation]:
    return [group.generation for group in (trainer.group, trainer.forming) if group is not None]


def _of_worker(trainer: Trainer, worker: Worker, node: NodeId, said: Says | None, pending: Pending) -> list[Event]:
    if said is None:
        waiting = pending.workers.get((trainer.id, node))
        if waiting is not None and isinstance(waiting[0], StartWorker):
            return []
        cause = ExitCause.STOPPED if worker.phase is WorkerPhase.STOPPING else ExitCause.DIED
        return [WorkerExited(trainer.id, node, cause, "it ended while its pilot was not connected")]
    out: list[Event] = []
    if worker.phase is WorkerPhase.STARTING and said.ready:
        out.append(WorkerReady(trainer.id, node))
    broken = "a member's connection was lost"
    if trainer.forming is not None and node in trainer.forming.members:
        out.append(GroupBroken(trainer.id, trainer.forming.generation, f"{broken} while it formed"))
    group = trainer.group
    if group is not None and node in group.members and said.generation != group.generation:
        out.append(GroupBroken(trainer.id, group.generation, f"{broken}, and its rank is gone"))
    return out
