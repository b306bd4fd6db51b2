"""Records events of one trainer: its workers, its groups, its progress.

Anything stale (about a generation or a worker that no longer exists) gives None and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from pilot.core import events
from pilot.core.commands import Command, ExamineGroup
from pilot.core.events import ExitCause, Unloaded
from pilot.core.ids import NO_GENERATION, NodeId
from pilot.core.pool.evidence import DEATHS_WITHIN_S, STRIKES, Accusation, Fault, Stage, headline
from pilot.core.trainer.actions import dissolve, dissolve_broken, stop
from pilot.core.trainer.proof import Proof
from pilot.core.trainer.trainer import Trainer, Unread, Worker, WorkerPhase

DEATHS_ALLOWED = 3
"""After this many deaths of members of a trainer's groups without a new step between them, it or its nodes have failed:
something that always dies at the same place gets no further."""

SICK_NODES = 2
"""Deaths on at most this many nodes, while others hold the state, are these nodes' fault."""

BREAKS_ALLOWED = 5
"""After this many of a trainer's groups broke on running pilots without a new step between them, it has failed."""

UNREAD_S = 300.0
"""If a trainer's checkpoint, or its folder at the start, could not be read on any node for this long, it is held."""

UNREAD_AGAIN_S = 60.0
"""A node that could not read it is tried again after this time."""

_STAGES = {ExitCause.JOINED_OTHERWISE: Stage.JOIN, ExitCause.RESUMED_OTHERWISE: Stage.RESUME}

PASSING_BREAKS = 3
"""After this many, the network between most of a trainer's nodes is not expected to come back soon."""


@dataclass(slots=True)
class Noted:
    """The consequences of an event: ``commands``, and the reasons for more ("": there is none).

    ``failure``: the trainer has failed. ``accusations``: what failed on nodes. ``works``: the nodes on which it works,
    and how far it got there. ``hold``, ``stop``: it must be held, or stop. ``replan``: another plan is needed.
    """

    commands: list[Command] = field(default_factory=list)
    failure: str = ""
    accusations: tuple[Accusation, ...] = ()
    works: tuple[tuple[NodeId, ...], Stage] | None = None
    hold: str = ""
    stop: str = ""
    replan: str = ""


def note(now_s: float, trainer: Trainer, event: events.TrainerEvent) -> Noted | None:
    """Record ``event``, which is about ``trainer`` and happened at ``now_s``; None if it is stale."""
    match event:
        case events.WorkerReady():
            return _worker_ready(trainer, event)
        case events.WorkerSlow():
            return _worker_slow(trainer, event)
        case events.CodeLoaded():
            return _code_loaded(trainer, event)
        case events.WorkerExited():
            return _worker_exited(now_s, trainer, event)
        case events.GroupFormed():
            return _group_formed(trainer, event)
        case events.GroupBroken():
            return _group_broken(now_s, trainer, event)
        case events.GroupPaused():
            return _group_paused(trainer, event)
        case events.GroupStalled():
            return _group_stalled(trainer, event)
        case events.GroupExamined():
            return _group_examined(trainer, event)
        case events.CheckpointWritten():
            return _checkpoint_written(trainer, event)
        case events.CheckpointPublished():
            return _checkpoint_published(trainer, event)
        case events.ScriptChecked():
            return _script_checked(trainer, event)
        case events.Progress():
            return _progress(now_s, trainer, event)
        case _:
            assert_never(event)


def _worker_ready(trainer: Trainer, event: events.WorkerReady) -> Noted | None:
    worker = trainer.workers.get(event.node)
    if worker is None or not worker.may_become(WorkerPhase.READY):
        return None
    worker.phase = WorkerPhase.READY
    return Noted(works=((event.node,), Stage.START))


def _worker_slow(trainer: Trainer, event: events.WorkerSlow) -> Noted | None:
    worker = trainer.workers.get(event.node)
    if worker is None or worker.phase is not WorkerPhase.STARTING or worker.slow:
        return None
    worker.slow = True
    return Noted()


def _code_loaded(trainer: Trainer, event: events.CodeLoaded) -> Noted | None:
    """The first version of each file is the trainer's. A worker with another one is stopped, as any new one would be;
    if nobody else can go on, the trainer saves its state and stops.
    """
    node, worker = event.node, trainer.workers.get(event.node)
    if worker is None or worker.phase is WorkerPhase.STOPPING or not trainer.open or trainer.stops:
        return None
    changed = next(((path, now) for path, now in event.files if trainer.code.get(path, now) != now), None)
    if changed is None:
        trainer.code.update(event.files)
        return Noted()
    reason = _other_version(trainer, node, *changed)
    others = [w for n, w in trainer.workers.items() if n != node and w.phase is not WorkerPhase.STOPPING]
    if not any(other.has_state or not worker.has_state for other in others):
        return Noted(stop=reason)
    member = any(node in group.members for group in trainer.groups)
    commands = dissolve(trainer, "a member has loaded other code") if member else []
    commands += stop(trainer, [node], reason)
    return Noted(commands, accusations=(Accusation(node, Stage.START, reason, fault=Fault.SCRIPT),))


def _other_version(trainer: Trainer, node: NodeId, path: str, now: str) -> str:
    versions = f"sha256 {trainer.code[path][:12]} then, {now[:12]} on {node}"
    return (
        f"{path} has changed since this trainer's first node loaded it ({versions}); restore it, or run the new"
        f" version: pilot resume {trainer.id}, once it has ended"
    )


def _worker_exited(now_s: float, trainer: Trainer, event: events.WorkerExited) -> Noted | None:
    if event.node not in trainer.workers:
        return None
    replica = trainer.replica_of(event.node)
    worker = trainer.without(event.node)
    if worker.phase is WorkerPhase.STOPPING or not trainer.open:
        if worker.alone_s and event.cause is not ExitCause.STOPPED:
            trainer.reason += f"; {headline(event.detail)}"
        return Noted()
    trained = event.node in trainer.members
    members = {node for group in trainer.groups if event.node in group.members for node in group.members}
    commands = dissolve_broken(trainer)
    match event.cause:
        case ExitCause.MATE_LOST if len(replica) < trainer.spec.nodes_per_replica:
            return Noted(commands)
        case _ if event.out_of_memory:
            trainer.counts.worker_deaths += 1
            return Noted(commands, replan=f"{trainer.id} ran out of memory on {event.node}")
        case ExitCause.RAISED if trained or worker.has_state:
            return Noted(commands, failure=event.detail)
        case ExitCause.RAISED if other := trainer.raised_elsewhere(event.node, event.origin):
            reason = f"it failed on {other} and {event.node} in the same line: {event.detail}"
            if not trainer.holders():
                return Noted(commands, failure=reason)
            return Noted(commands, accusations=(Accusation(event.node, Stage.START, reason, fault=Fault.SCRIPT),))
        case ExitCause.UNREAD:
            again = f"pilot release {trainer.id} tries again"
            return _unread(now_s, trainer, event.node, commands, "start it", f"{event.node}: {event.detail}", again)
        case ExitCause.RESUMED_OTHERWISE:
            attempt = [node for node, its in trainer.workers.items() if its.has_state or node in members]
            commands += stop(trainer, attempt, f"{event.node} computes another gradient than before the resume")
        case ExitCause.DIED | ExitCause.MATE_LOST:
            trainer.counts.worker_deaths += event.cause is ExitCause.DIED
            if members or worker.has_state:
                failure, accusations = _member_died(now_s, trainer, worker, event)
                return Noted(commands, failure, accusations)
            reason = f"its process died {STRIKES} times while starting; the last time: {event.detail}"
            return Noted(commands, accusations=(Accusation(event.node, Stage.START, reason, 1),))
    stage = _STAGES.get(event.cause, Stage.START)
    return Noted(commands, accusations=(Accusation(event.node, stage, event.detail),))


def _member_died(
    now_s: float, trainer: Trainer, worker: Worker, event: events.WorkerExited
) -> tuple[str, tuple[Accusation, ...]]:
    """Judge three deaths without a new step: on one or two nodes, while others live, it is the nodes' fault; otherwise
    the script's. With steps in between, it is the fault of a node that has most of the recent ones. Returns why the
    script failed, and the accused nodes.
    """
    often = _dies_there(now_s, trainer, event) if event.cause is ExitCause.DIED else ()
    trainer.died[event.node] = None
    if worker.attempt == trainer.deaths_in_a_row:
        trainer.deaths_in_a_row += 1
    if trainer.deaths_in_a_row < DEATHS_ALLOWED:
        return "", often
    died, others = list(trainer.died), [n for n in trainer.holders() if n not in trainer.died]
    times = f"its process died {DEATHS_ALLOWED} times in a row on living pilots, without a new step in between"
    reason = f"{times}; the last time: {event.detail}"
    if len(died) > (SICK_NODES if others else 1):
        return reason, ()
    trainer.deaths_in_a_row, trainer.died = 0, {}
    return "", tuple(Accusation(node, Stage.RUN, reason) for node in died)


def _dies_there(now_s: float, trainer: Trainer, event: events.WorkerExited) -> tuple[Accusation, ...]:
    """Accuse the node if most of the recent deaths were on it: each costs the others a rescale. A script that dies now
    and then does so on many nodes."""
    evidence = trainer.evidence
    times = evidence.died(now_s, event.node)
    others = any(node not in evidence.deaths for node in trainer.holders())
    if times < DEATHS_ALLOWED or len(evidence.deaths) > SICK_NODES or not others:
        return ()
    del evidence.deaths[event.node]
    within = f"within {DEATHS_WITHIN_S / 60:.0f} minutes, while others lived"
    reason = f"its process died {times} times {within}; the last time: {event.detail}"
    return (Accusation(event.node, Stage.RUN, reason),)


def _group_formed(trainer: Trainer, event: events.GroupFormed) -> Noted | None:
    if trainer.forming is None or event.generation != trainer.forming.generation:
        return None
    before = len(trainer.members)
    trainer.group, trainer.forming = trainer.forming, None
    after = len(trainer.group.members)
    trainer.grew = after >= before
    trainer.counts.rescales_up += 0 < before < after
    trainer.counts.rescales_down += after < before
    if event.resumed is not None:
        trainer.counts.lost_steps += max(0, trainer.step - event.resumed)
        trainer.reached = max(trainer.reached, trainer.step)
    trainer.step = event.step
    trainer.synced, trainer.saved, trainer.failed_writes = True, False, 0
    # nodes that only replace others are not compared
    newcomers = [node for node in trainer.members if 0 < before < after and not trainer.holds_state(node)]
    trainer.evidence.formed(event.step, trainer.group.members, newcomers)
    for worker in trainer.workers.values():
        worker.has_state = False  # of others it is old from now on
    for node in trainer.group.members:
        trainer.workers[node].has_state = True
        trainer.workers[node].attempt = trainer.deaths_in_a_row
    trainer.unread = None
    return Noted(works=(trainer.group.members[:1], Stage.READ) if event.resumed else None)


def _group_broken(now_s: float, trainer: Trainer, event: events.GroupBroken) -> Noted | None:
    group = trainer.group_of(event.generation)
    if not trainer.open or group is None:
        return None
    if event.unloaded is not None and event.node is not None:
        return _unloaded(now_s, trainer, event, event.node)
    if event.silent:
        return _leave_out(trainer, event)
    return _broke(trainer, event.reason, _prevented(trainer, event) if group is trainer.forming else ())


def _leave_out(trainer: Trainer, event: events.GroupBroken) -> Noted | None:
    """Go on without silent nodes if others can. Nothing is held against them: they may only be short of memory, and
    train again once their workers have ended.
    """
    if not trainer.can_do_without(event.silent):
        return None
    silent = [mate for node in event.silent for mate in trainer.replica_of(node)]
    for node in silent:
        trainer.workers[node].slow = True  # newcomers do not wait for it
    return Noted([*dissolve(trainer, event.reason), *stop(trainer, silent, event.reason, kill=True)])


def _unloaded(now_s: float, trainer: Trainer, event: events.GroupBroken, node: NodeId) -> Noted:
    """Other nodes may be able to load its state, or this one in a while. If it is damaged, no node is."""
    commands, instead = dissolve(trainer, event.reason), f"pilot resume {trainer.id} --from-scratch starts without it"
    if event.unloaded is Unloaded.DAMAGED:
        trainer.unread = Unread(now_s, now_s, event.reason)
        return Noted(commands, hold=f"held: its state cannot be loaded: {event.reason}; {instead}")
    return _unread(now_s, trainer, node, commands, "load its state", event.reason, instead)


def _unread(
    now_s: float, trainer: Trainer, node: NodeId, commands: list[Command], task: str, reason: str, instead: str
) -> Noted:
    """Give the trainer other nodes for a while if ``node`` could not do its ``task``, because of files that others may
    be able to read, or this one later. ``instead``: what a user can do if no node can for long.
    """
    earlier = trainer.unread
    lately = earlier is not None and now_s - earlier.last_s < UNREAD_S + trainer.spec.warm_up_s
    since_s = earlier.since_s if earlier is not None and lately else now_s
    trainer.unread = Unread(since_s, now_s, reason)
    if now_s - since_s >= UNREAD_S:
        hold = f"held: for {UNREAD_S / 60:.0f} minutes no node could {task}: {reason}; {instead}"
        return Noted(commands, hold=hold)
    return Noted(commands, accusations=(Accusation(node, Stage.READ, reason, again_s=UNREAD_AGAIN_S),))


def _prevented(trainer: Trainer, event: events.GroupBroken) -> tuple[Accusation, ...]:
    """Accuse the nodes that kept the group from forming: those that others cannot reach. If there are none, it was a
    new one, since the others could form groups before; of several, the one that noticed first.
    """
    assert trainer.forming is not None
    members = trainer.forming.members
    if event.unreached:
        return _cut_off(trainer, members, event.unreached)
    newcomers = tuple(n for n in members if not trainer.holds_state(n))
    suspects = newcomers if len(newcomers) < len(members) else members
    if len(suspects) > 1 and event.node is not None:
        suspects = tuple(n for n in suspects if n == event.node)
    reason = f"a group with it could not form: {event.reason}"
    return (Accusation(suspects[0], Stage.RUN, reason, 1),) if len(suspects) == 1 else ()


def _cut_off(
    trainer: Trainer, members: tuple[NodeId, ...], unreached: Sequence[tuple[NodeId, NodeId]]
) -> tuple[Accusation, ...]:
    """Accuse the fewest nodes, roughly, without which all others reach each other; never all that hold the state. If
    these are more than half of them, it may be the network and pass, so they are accused late.
    """
    held = {node for node in members if trainer.holds_state(node)}
    cut, pairs = set[NodeId](), {frozenset(pair) for pair in unreached if set(pair) <= set(members)}
    while pairs:
        times = Counter(node for pair in pairs for node in pair)
        worst = max(reversed(members), key=lambda node: (times[node], node not in held))
        cut.add(worst)
        pairs = {pair for pair in pairs if worst not in pair}
    if held and held <= cut:
        cut = set(members) - held
    if 2 * len(cut) > len(members) and trainer.broken_in_a_row < PASSING_BREAKS:
        return ()
    accused = [node for node in members if node in cut]
    return tuple(Accusation(node, Stage.RUN, _unreachable(node, unreached), fault=Fault.NODE) for node in accused)


def _unreachable(node: NodeId, unreached: Sequence[tuple[NodeId, NodeId]]) -> str:
    others = list(dict.fromkeys(one for pair in unreached if node in pair for one in pair if one != node))
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    return f"through the network it and {', '.join(others[:3])}{more} cannot reach each other"


def _broke(trainer: Trainer, reason: str, accusations: tuple[Accusation, ...] = ()) -> Noted:
    trainer.broken_in_a_row += 1
    commands = dissolve(trainer, reason)
    if trainer.broken_in_a_row < BREAKS_ALLOWED or any(accusation.fault is Fault.NODE for accusation in accusations):
        return Noted(commands, accusations=accusations)
    times = f"{BREAKS_ALLOWED} of its groups broke in a row, without a new step in between"
    return Noted(commands, f"{times}; the last one: {reason}")


def _group_paused(trainer: Trainer, event: events.GroupPaused) -> Noted | None:
    if trainer.group is None or event.generation != trainer.group.generation:
        return None
    commands = dissolve(trainer, "it paused after an agreed step")
    trainer.synced, trainer.step = True, event.step
    return Noted(commands)


def _group_stalled(trainer: Trainer, event: events.GroupStalled) -> Noted | None:
    group = trainer.group_of(event.generation)
    if group is None or trainer.group_of(trainer.examining) is not None:
        return None
    trainer.examining, kill = group.generation, event.waited_s >= trainer.spec.patience_s
    return Noted([ExamineGroup(trainer.id, group.generation, group.members, event.reason, kill)])


def _group_examined(trainer: Trainer, event: events.GroupExamined) -> Noted | None:
    """Agents kill lost members; slow ones are waited for. If all are waiting, they wait for one another."""
    if event.generation != trainer.examining:
        return None
    trainer.examining = NO_GENERATION
    group = trainer.group_of(event.generation)
    if group is None or not event.seen or any(seen is not events.StallFinding.WAITS for _, seen in event.seen):
        return Noted()
    broken = events.GroupBroken(
        trainer.id, group.generation, "its ranks all waited for one another", unreached=event.unreached
    )
    if group is trainer.forming:
        return _broke(trainer, broken.reason, _prevented(trainer, broken))
    return _broke(trainer, broken.reason, _cut_off(trainer, group.members, event.unreached))


def _checkpoint_written(trainer: Trainer, event: events.CheckpointWritten) -> Noted | None:
    if event.node not in trainer.writing:
        return None
    del trainer.writing[event.node]
    if event.error:
        trainer.failed_writes += 1
    else:
        trainer.saved, trainer.saved_step = True, event.step
    return Noted()


def _checkpoint_published(trainer: Trainer, event: events.CheckpointPublished) -> Noted:
    trainer.measured.wrote(event.alone_s)
    trainer.saved_step = event.step
    return Noted()


def _script_checked(trainer: Trainer, event: events.ScriptChecked) -> Noted | None:
    if event.node != trainer.proof.node:
        return None
    trainer.proof = Proof(event.result, event.line)
    return Noted(replan=f"trainer {trainer.id} may grow" if trainer.stays_at() is None else "")


def _progress(now_s: float, trainer: Trainer, event: events.Progress) -> Noted | None:
    if trainer.group is None or event.generation != trainer.group.generation:
        return None
    advanced = event.step > max(trainer.step, trainer.reached)
    if advanced:
        trainer.deaths_in_a_row = trainer.broken_in_a_row = 0
        trainer.died, trainer.raised = {}, {}
    trainer.step, trainer.epoch, trainer.samples = event.step, event.epoch, event.samples
    if event.total_samples is not None:
        trainer.total_samples = event.total_samples
    beside_check = trainer.proof.node in trainer.group.members
    if event.samples_per_s is not None and not beside_check:
        trainer.measured.rate(now_s, len(trainer.group.members), event.samples_per_s, event.generation)
    if event.rescale_s is not None:
        trainer.measured.cost(trainer.grew, event.rescale_s)
    if (alike := trainer.evidence.compared(event.step)) and trainer.evidence.doubted(Stage.JOIN):
        return Noted(works=(alike, Stage.JOIN))
    doubtful = bool(trainer.evidence.strikes or trainer.evidence.doubts)
    return Noted(works=(trainer.group.members, Stage.RUN) if advanced and doubtful else None)
