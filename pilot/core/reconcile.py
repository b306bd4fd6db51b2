"""What one trainer needs next: from where it stands to where the plan wants it.

Level-triggered: nothing here remembers how a state came about. After every event the coordinator calls
:func:`reconcile` for each trainer that the event touched; out come the commands that lead from the facts to the target.
Calling it once more changes nothing until another event comes.

The order of thought, each line only where the ones above did not apply:

============================================================  =======================================================
the facts                                                  the commands
============================================================  =======================================================
the trainer ends (finished, failed, cancelled)             DissolveGroup, StopWorker everywhere, then CloseTrainer
a target node without a worker, nobody's worker on it      StartWorker
a pause or a checkpoint is under way                       wait
a group forms                                              wait (a loss or a notice in it dissolves it beforehand)
a group trains, none of its members stays                  PauseGroup
a group trains, too few stay, and one has been given notice PauseGroup
a group trains, members leave or all newcomers are ready   FormGroup, the old group trains on until the switch
no group, unsaved state held only where it cannot stay     WriteCheckpoint there
no group, unsaved state held by too few (parked)           WriteCheckpoint there, then wait for a plan
no group, enough holders of a state stay                   FormGroup at once
no group, no state anywhere, all newcomers ready           FormGroup (from the newest checkpoint, or fresh)
a worker that is not needed for any of this                StopWorker
a node that leaves, and nobody's worker on it              ReleaseNode (the coordinator's part)
============================================================  =======================================================
"""

from __future__ import annotations

from pilot.core.commands import (
    CloseTrainer,
    Command,
    DissolveGroup,
    FormGroup,
    Outcome,
    PauseGroup,
    StartWorker,
    StopWorker,
    WriteCheckpoint,
)
from pilot.core.ids import Generation, NodeId
from pilot.core.pool import Pool
from pilot.core.trainer import Group, Trainer, Worker, WorkerPhase

WRITES_TRIED = 3
"""A trainer that goes to 0 nodes tries so often to save its state before its nodes are released without."""


def reconcile(trainer: Trainer, pool: Pool) -> list[Command]:
    """The commands that ``trainer`` needs now; its bookkeeping is updated as if they were given."""
    if trainer.outcome is not None:
        return []
    if trainer.closing is not None:
        return _close(trainer, trainer.closing)
    out = _start_workers(trainer, pool)
    if trainer.pausing or trainer.forming is not None:
        return out
    if not trainer.writing:
        out += _regroup(trainer, pool) if trainer.group is not None else _gather(trainer)
    if not (trainer.pausing or _held_elsewhere_only(trainer)):
        out += _stop_surplus(trainer)
    return out


def dissolve(trainer: Trainer, reason: str) -> list[Command]:
    """Give up the group that trains and the one that forms; their workers may differ by a step from now on."""
    groups = [g for g in (trainer.group, trainer.forming) if g is not None]
    trainer.group = trainer.forming = None
    trainer.pausing = trainer.synced = False
    return [_dissolve_command(trainer, g, reason) for g in groups]


def dissolve_broken(trainer: Trainer) -> list[Command]:
    """Dissolve if a member has lost its worker; reconcile then forms the next group of the survivors at once."""
    groups = (trainer.group, trainer.forming)
    if not any(n not in trainer.workers for group in groups if group is not None for n in group.members):
        return []
    return dissolve(trainer, "a member was lost")


def _dissolve_command(trainer: Trainer, group: Group, reason: str) -> Command:
    living = tuple(n for n in group.members if n in trainer.workers)
    return DissolveGroup(trainer.id, group.generation, living, reason)


def _close(trainer: Trainer, outcome: Outcome) -> list[Command]:
    # A finished group is not dissolved: its ranks end with their workers, in good order.
    out = [] if outcome is Outcome.FINISHED else dissolve(trainer, trainer.reason)
    trainer.group = trainer.forming = None
    trainer.pausing = False
    trainer.writing.clear()
    out += [command for node in list(trainer.workers) for command in _stop(trainer, node, outcome.value)]
    if not trainer.workers:
        trainer.outcome, trainer.closing = outcome, None
        out.append(CloseTrainer(trainer.id, outcome, trainer.reason))
    return out


def _start_workers(trainer: Trainer, pool: Pool) -> list[Command]:
    out: list[Command] = []
    for node in trainer.target:
        if node in trainer.workers or node in pool.occupant:
            continue
        trainer.workers[node] = Worker(attempt=trainer.deaths_in_a_row)
        pool.occupant[node] = trainer.id
        out.append(StartWorker(trainer.id, node, "the plan gives it this node"))
    return out


def _held_elsewhere_only(trainer: Trainer) -> bool:
    """Whether a checkpoint is awaited of a state that no worker holds that stays."""
    return bool(trainer.writing) and not any(trainer.holds_state(node) for node in trainer.target)


def _pending(trainer: Trainer) -> bool:
    """Whether a node of the target will be ready later."""
    return any(not trainer.ready_on(node) for node in trainer.target)


def _regroup(trainer: Trainer, pool: Pool) -> list[Command]:
    group = trainer.group
    assert group is not None
    target = set(trainer.target)
    stay = [n for n in group.members if n in target]
    newcomers = [n for n in trainer.target if n not in group.members and trainer.ready_on(n)]
    parting = len(stay) < len(group.members)
    if not parting and (not newcomers or _pending(trainer)):
        return []
    if not stay:
        return _pause(trainer, group, "none of its nodes stays")
    if len(stay) + len(newcomers) < trainer.spec.min_nodes:
        urgent = any(n in pool.leaving for n in group.members)
        return _pause(trainer, group, "too few of its nodes stay") if urgent else []
    reason = "nodes are taken back" if parting else "nodes were added"
    return _form(trainer, (*stay, *newcomers), group.generation, reason)


def _gather(trainer: Trainer) -> list[Command]:
    holders = trainer.holders()
    staying = [n for n in trainer.target if trainer.holds_state(n) and trainer.ready_on(n)]
    at_risk = not staying or trainer.parked
    if holders and at_risk and not trainer.saved and trainer.failed_writes < WRITES_TRIED:
        return _save(trainer, staying or holders)
    ready = [n for n in trainer.target if trainer.ready_on(n)]
    if len(ready) < trainer.spec.min_nodes or (_pending(trainer) and len(staying) < trainer.spec.min_nodes):
        return []
    newcomers = [n for n in ready if n not in staying]
    return _form(trainer, (*staying, *newcomers), None, "the survivors go on" if staying else "it can start")


def _save(trainer: Trainer, holders: list[NodeId]) -> list[Command]:
    """Survivors of a broken group may differ by a step, so each writes: the newest file wins."""
    nodes = holders[:1] if trainer.synced else holders
    trainer.writing.update(nodes)
    reason = "it is parked" if trainer.parked else "its nodes are given back"
    return [WriteCheckpoint(trainer.id, n, reason) for n in nodes]


def _pause(trainer: Trainer, group: Group, reason: str) -> list[Command]:
    trainer.pausing = True
    return [PauseGroup(trainer.id, group.generation, group.members, reason)]


def _form(trainer: Trainer, members: tuple[NodeId, ...], previous: Generation | None, reason: str) -> list[Command]:
    trainer.generation = Generation(trainer.generation + 1)
    trainer.forming = Group(trainer.generation, members, previous)
    return [FormGroup(trainer.id, trainer.generation, members, previous, reason)]


def _stop_surplus(trainer: Trainer) -> list[Command]:
    needed = {*trainer.target, *trainer.writing}
    for group in (trainer.group, trainer.forming):
        if group is not None:
            needed.update(group.members)
    surplus = [n for n in trainer.workers if n not in needed]
    return [command for node in surplus for command in _stop(trainer, node, "the plan takes this node back")]


def _stop(trainer: Trainer, node: NodeId, reason: str) -> list[Command]:
    worker = trainer.workers[node]
    if worker.phase is WorkerPhase.STOPPING:
        return []
    worker.phase, worker.has_state = WorkerPhase.STOPPING, False
    return [StopWorker(trainer.id, node, reason)]
