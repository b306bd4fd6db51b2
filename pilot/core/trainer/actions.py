"""The actions on one trainer: each returns commands and updates the trainer's records as if they were carried out."""

from __future__ import annotations

from collections.abc import Callable

from pilot.core import commands
from pilot.core.commands import Command, Outcome
from pilot.core.ids import Generation, NodeId
from pilot.core.trainer.proof import Proof, ProofState
from pilot.core.trainer.situation import Situation
from pilot.core.trainer.trainer import Group, Trainer, Worker, WorkerPhase

Action = Callable[[Situation], list[Command]]

DRAIN_LEAST_S = 10.0
"""How long a script may run on after its loop when the pool is shut down, if the site's grace is shorter."""


def wait(_: Situation) -> list[Command]:
    """Do nothing: an event that is certain to come will decide."""
    return []


def close(situation: Situation) -> list[Command]:
    """Stop every worker, and close the trainer once none is left."""
    trainer, outcome = situation.trainer, situation.trainer.closing
    assert outcome is not None
    # A finished group is not dissolved: its ranks exit cleanly with their workers.
    finished = outcome is Outcome.FINISHED
    out = [] if finished else dissolve(trainer, trainer.reason)
    trainer.group = trainer.forming = None
    trainer.pausing = False
    for node, worker in trainer.workers.items():
        if finished and worker.has_state and node in situation.pool.busy:
            worker.alone_s = trainer.spec.after_loop_s
    out += stop(trainer, list(trainer.workers), outcome.value)
    if not trainer.workers:
        trainer.outcome, trainer.closing = outcome, None
        out.append(commands.CloseTrainer(trainer.id, outcome, trainer.reason))
    return out


def cut_short(trainer: Trainer) -> list[Command]:
    """End the script now: the trainer was cancelled while it ran on after the loop."""
    if out := hasten(trainer, 0.0, Outcome.CANCELLED.value):
        trainer.reason += "; it was cancelled before its script had ended"
    return out


def hasten(trainer: Trainer, within_s: float, reason: str) -> list[Command]:
    """Let the script, if it runs on after the loop, end within this time (0: now) instead of ``after_loop_s``."""
    nodes = [node for node, worker in trainer.workers.items() if worker.alone_s > within_s]
    for node in nodes:
        trainer.workers[node].alone_s = within_s
    return [commands.StopWorker(trainer.id, node, reason, within_s) for node in nodes]


def close_stopped(situation: Situation) -> list[Command]:
    """Close a trainer that was asked to stop."""
    trainer = situation.trainer
    trainer.outcome, trainer.reason, trainer.held, trainer.stops = Outcome.STOPPED, trainer.held, "", False
    return [commands.CloseTrainer(trainer.id, Outcome.STOPPED, trainer.reason)]


def start_lacking(situation: Situation) -> list[Command]:
    """Start a worker on each target node that has none."""
    trainer, lacking, size = situation.trainer, situation.lacking, situation.trainer.spec.nodes_per_replica
    out: list[Command] = []
    for number, node in enumerate(lacking):
        place = number % size
        trainer.replicas += size > 1 and place == 0
        worker = trainer.workers[node] = Worker(attempt=trainer.deaths_in_a_row, replica=trainer.replicas)
        situation.pool.occupant[node] = trainer.id
        reason = "the plan gives it this node"
        out.append(commands.StartWorker(trainer.id, node, reason, worker.replica, place))
    return out


def stop_surplus(situation: Situation) -> list[Command]:
    """Stop the workers that are no longer needed."""
    return stop(situation.trainer, situation.surplus, "the plan takes this node back")


def stop(trainer: Trainer, nodes: list[NodeId], reason: str, *, kill: bool = False) -> list[Command]:
    """Stop (or ``kill``) the workers on these nodes, unless they are stopping. Those of a broken replica are killed."""
    out: list[Command] = []
    for node in nodes:
        worker = trainer.workers[node]
        if worker.may_become(WorkerPhase.STOPPING):
            worker.phase, worker.has_state = WorkerPhase.STOPPING, False
            broken = len(trainer.replica_of(node)) < trainer.spec.nodes_per_replica
            why = "its replica is broken" if broken else reason
            out.append(commands.StopWorker(trainer.id, node, why, worker.alone_s, kill or broken))
    return out


def save_parked(situation: Situation) -> list[Command]:
    """Save the state of a parked trainer; it stays in memory as well."""
    return _save(situation.trainer, situation.staying, "it is parked")


def save_going(situation: Situation) -> list[Command]:
    """Save a state that is held only on nodes that the trainer gives up."""
    return _save(situation.trainer, situation.trainer.holders(), "its nodes are given back")


def _save(trainer: Trainer, holders: list[NodeId], reason: str) -> list[Command]:
    """Survivors of a broken group may differ by a step, so each writes: the newest file wins."""
    size = trainer.spec.nodes_per_replica
    nodes = holders[:1] if trainer.synced else holders[::size]
    trainer.writing.update(dict.fromkeys(nodes))
    return [commands.WriteCheckpoint(trainer.id, n, reason, tuple(trainer.replica_of(n)[1:])) for n in nodes]


def pause(reason: str) -> Action:
    """Pause the training group, for ``reason``."""

    def action(situation: Situation) -> list[Command]:
        trainer, group = situation.trainer, situation.trainer.group
        assert group is not None
        trainer.pausing = True
        return [commands.PauseGroup(trainer.id, group.generation, group.members, reason)]

    return action


def form(reason: str) -> Action:
    """Form the next group from the members that stay and the newcomers, for ``reason``."""

    def action(situation: Situation) -> list[Command]:
        trainer, members = situation.trainer, (*situation.staying, *situation.newcomers)
        previous = trainer.group.generation if trainer.group is not None else None
        trainer.generation = Generation(trainer.generation + 1)
        trainer.forming = Group(trainer.generation, members)
        known = trainer.saved_step, trainer.given_up
        return [commands.FormGroup(trainer.id, trainer.generation, members, previous, reason, *known)]

    return action


def check(situation: Situation) -> list[Command]:
    """Have the script checked on the only node of the training group."""
    trainer = situation.trainer
    (node,) = trainer.members
    trainer.proof = Proof(ProofState.RUNNING, node=node)
    return [commands.CheckScript(trainer.id, node, "before it gets a second node")]


def dissolve(trainer: Trainer, reason: str) -> list[Command]:
    """Dissolve the training group and the forming one; from now on their workers may differ by a step."""
    groups = trainer.groups
    trainer.group = trainer.forming = None
    trainer.pausing = trainer.synced = False
    out: list[Command] = []
    for group in groups:
        living = tuple(node for node in group.members if node in trainer.workers)
        out.append(commands.DissolveGroup(trainer.id, group.generation, living, reason))
    return out


def dissolve_broken(trainer: Trainer) -> list[Command]:
    """Dissolve the groups if a member has lost its worker; reconcile then forms the next one from the survivors at
    once.
    """
    lost = any(node not in trainer.workers for group in trainer.groups for node in group.members)
    return dissolve(trainer, "a member was lost") if lost else []
