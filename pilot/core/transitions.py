"""Notes what happened to one trainer: its workers, its groups, its progress.

Whatever is stale (of a generation or a worker that is no more) gives None and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from pilot.core.acts import dissolve, dissolve_broken
from pilot.core.commands import Command, LookAtGroup
from pilot.core.events import (
    CheckpointPublished,
    CheckpointWritten,
    ExitCause,
    GroupBroken,
    GroupFormed,
    GroupLookedAt,
    GroupPaused,
    GroupStalled,
    Progress,
    Seen,
    WorkerExited,
    WorkerReady,
)
from pilot.core.trainer import NO_GENERATION, Trainer, WorkerPhase

DEATHS_ALLOWED = 3
"""So many deaths of a trainer's processes on living pilots, without a step between them, and it has failed."""

BREAKS_ALLOWED = 5
"""So many groups of a trainer that broke on living pilots, without a step between them, and it has failed."""

TrainerEvent = (
    WorkerReady
    | WorkerExited
    | GroupFormed
    | GroupBroken
    | GroupPaused
    | GroupStalled
    | GroupLookedAt
    | CheckpointWritten
    | CheckpointPublished
    | Progress
)


@dataclass(frozen=True, slots=True)
class Noted:
    """``commands`` that follow at once; ``failure`` says why the trainer has failed, if it has."""

    commands: list[Command] = field(default_factory=list)
    failure: str = ""


def note(trainer: Trainer, event: TrainerEvent) -> Noted | None:
    """Note ``event``, which is about ``trainer``; None where it is stale."""
    match event:
        case WorkerReady():
            return _worker_ready(trainer, event)
        case WorkerExited():
            return _worker_exited(trainer, event)
        case GroupFormed():
            return _group_formed(trainer, event)
        case GroupBroken():
            return _group_broken(trainer, event)
        case GroupPaused():
            return _group_paused(trainer, event)
        case GroupStalled():
            return _group_stalled(trainer, event)
        case GroupLookedAt():
            return _group_looked_at(trainer, event)
        case CheckpointWritten():
            return _checkpoint_written(trainer, event)
        case CheckpointPublished():
            trainer.measured.wrote(event.alone_s)
            return Noted()
        case Progress():
            return _progress(trainer, event)
        case _:
            assert_never(event)


def _worker_ready(trainer: Trainer, event: WorkerReady) -> Noted | None:
    worker = trainer.workers.get(event.node)
    if worker is None or not worker.may_become(WorkerPhase.READY):
        return None
    worker.phase = WorkerPhase.READY
    return Noted()


def _worker_exited(trainer: Trainer, event: WorkerExited) -> Noted | None:
    worker = trainer.workers.pop(event.node, None)
    if worker is None:
        return None
    trainer.writing.discard(event.node)
    if worker.phase is WorkerPhase.STOPPING or not trainer.open:
        return Noted()
    raised = event.cause is ExitCause.RAISED
    failure = _script_raised(trainer, event) if raised else _process_died(trainer, worker.attempt, event)
    return Noted(dissolve_broken(trainer), failure)


def _process_died(trainer: Trainer, attempt: int, event: WorkerExited) -> str:
    trainer.counts.worker_deaths += 1
    if attempt == trainer.deaths_in_a_row:
        trainer.deaths_in_a_row += 1
    if trainer.deaths_in_a_row < DEATHS_ALLOWED:
        return ""
    times = f"its process died {DEATHS_ALLOWED} times on living pilots without a step between"
    return f"{times}; the last time: {event.detail}"


def _script_raised(trainer: Trainer, event: WorkerExited) -> str:
    """A newcomer that cannot start does no harm to those that train: they go on without further growth."""
    trains = trainer.group is not None and event.node in trainer.group.members
    if trains or not (trainer.group is not None or trainer.holders()):
        return event.detail
    trainer.refusal = event.detail
    return ""


def _group_formed(trainer: Trainer, event: GroupFormed) -> Noted | None:
    if trainer.forming is None or event.generation != trainer.forming.generation:
        return None
    before = len(trainer.group.members) if trainer.group is not None else 0
    trainer.group, trainer.forming = trainer.forming, None
    _count_rescale(trainer, before, len(trainer.group.members))
    if event.resumed is not None:
        trainer.counts.lost_steps += max(0, trainer.step - event.resumed)
    trainer.step = event.step
    trainer.synced, trainer.saved, trainer.failed_writes = True, False, 0
    for node in trainer.group.members:
        trainer.workers[node].has_state = True
    return Noted()


def _count_rescale(trainer: Trainer, before: int, after: int) -> None:
    trainer.grew = after >= before
    if before and after > before:
        trainer.counts.rescales_up += 1
    if before and after < before:
        trainer.counts.rescales_down += 1


def _group_broken(trainer: Trainer, event: GroupBroken) -> Noted | None:
    groups = [g.generation for g in (trainer.group, trainer.forming) if g is not None]
    if not trainer.open or event.generation not in groups:
        return None
    return _broke(trainer, event.reason)


def _broke(trainer: Trainer, reason: str) -> Noted:
    trainer.broken_in_a_row += 1
    failure = ""
    if trainer.broken_in_a_row >= BREAKS_ALLOWED:
        failure = f"{BREAKS_ALLOWED} of its groups broke without a step between; the last one: {reason}"
    return Noted(dissolve(trainer, reason), failure)


def _group_paused(trainer: Trainer, event: GroupPaused) -> Noted | None:
    if trainer.group is None or event.generation != trainer.group.generation:
        return None
    commands = dissolve(trainer, "it paused after an agreed step")
    trainer.synced, trainer.step = True, event.step
    return Noted(commands)


def _group_stalled(trainer: Trainer, event: GroupStalled) -> Noted | None:
    group = trainer.group or trainer.forming
    if group is None or event.generation != group.generation or trainer.looking == group.generation:
        return None
    trainer.looking = group.generation
    return Noted([LookAtGroup(trainer.id, group.generation, group.members, event.reason)])


def _group_looked_at(trainer: Trainer, event: GroupLookedAt) -> Noted | None:
    """Who is lost is killed by its agent, and who is slow is waited for. Where all wait, they wait for one another."""
    if event.generation != trainer.looking:
        return None
    trainer.looking = NO_GENERATION
    trains = trainer.group is not None and trainer.group.generation == event.generation
    if trains and event.seen and all(seen is Seen.WAITS for _, seen in event.seen):
        return _broke(trainer, "its ranks all waited for one another")
    return Noted()


def _checkpoint_written(trainer: Trainer, event: CheckpointWritten) -> Noted | None:
    if event.node not in trainer.writing:
        return None
    trainer.writing.discard(event.node)
    if event.error:
        trainer.failed_writes += 1
    else:
        trainer.saved = True
    return Noted()


def _progress(trainer: Trainer, event: Progress) -> Noted | None:
    if trainer.group is None or event.generation != trainer.group.generation:
        return None
    if event.step > trainer.step:
        trainer.deaths_in_a_row = trainer.broken_in_a_row = 0
    trainer.step, trainer.epoch, trainer.samples = event.step, event.epoch, event.samples
    if event.samples_per_s is not None:
        trainer.measured.rate(len(trainer.group.members), event.samples_per_s)
    if event.rescale_s is not None:
        trainer.measured.cost(trainer.grew, event.rescale_s)
    return Noted()
