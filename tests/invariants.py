"""Invariants that must hold after every event, checked by tests and the chaos run; a violation is a bug of ours."""

from __future__ import annotations

from collections.abc import Iterator

from pilot.core.coordinator import Coordinator
from pilot.core.trainer.trainer import Group, Trainer


def violations(core: Coordinator) -> list[str]:
    """One line per violated invariant; empty if all hold."""
    own = (line for t in core.trainers.values() for line in _trainer(core, t))
    return [*_order(core), *_ownership(core), *_set_aside(core), *own]


def _order(core: Coordinator) -> Iterator[str]:
    """A snapshot has one order of the trainers, so there must be only one."""
    of_all, of_open = list(core.trainers), list(core._registry.open)
    if of_open != [name for name in of_all if name in core._registry.open]:
        yield f"open trainers are in the order {of_open}, all of them in {of_all}"


def _ownership(core: Coordinator) -> Iterator[str]:
    targets = [(node, t.id) for t in core.trainers.values() for node in t.target]
    workers = [(node, t.id) for t in core.trainers.values() for node in t.workers]
    if dict(targets) != core.pool.owner or len(targets) != len(core.pool.owner):
        yield f"targets {targets} and owners {core.pool.owner} differ"
    if dict(workers) != core.pool.occupant or len(workers) != len(core.pool.occupant):
        yield f"workers {workers} and occupants {core.pool.occupant} differ"
    for node, trainer in targets:
        if node not in core.pool or node in core.pool.leaving:
            yield f"{trainer} is promised {node}, which is leaving or gone"
    for node, trainer in workers:
        if node not in core.pool:
            yield f"{trainer} has a worker on {node}, which is gone"
    for node in core.pool.busy:
        if (occupant := core.pool.occupant.get(node)) is None or core.trainers[occupant].closing is None:
            yield f"{node} is busy, but no trainer that closes has a worker there"
        if node in core.pool.owner:
            yield f"{node} is busy, and promised to {core.pool.owner[node]}"


def _set_aside(core: Coordinator) -> Iterator[str]:
    for node in core.pool.aside:
        if node not in core.pool:
            yield f"{node} is set aside and gone"
    for trainer in core.trainers.values():
        evidence = trainer.evidence
        if taken := [n for n in trainer.target if n in evidence.aside]:
            yield f"{trainer.id} is promised {taken}, which are set aside for it"
        known = [*evidence.strikes, *evidence.doubts, *evidence.aside, *evidence.times]
        if gone := [n for n in known if n not in core.pool]:
            yield f"{trainer.id} remembers {gone}, which are gone"
        if known and not trainer.open:
            yield f"{trainer.id} has ended and holds {known} against nodes"


def _trainer(core: Coordinator, trainer: Trainer) -> Iterator[str]:
    for group in (trainer.group, trainer.forming):
        if group is not None:
            yield from _group(trainer, group)
    if len(trainer.target) > trainer.spec.max_nodes:
        yield f"{trainer.id} is promised {len(trainer.target)} nodes, more than its max {trainer.spec.max_nodes}"
    if trainer.target and trainer.spec.fitting(len(trainer.target)) != len(trainer.target):
        yield f"{trainer.id} is promised {len(trainer.target)} nodes, and its sizes are {trainer.spec.sizes}"
    kept = trainer.proof.keeps_to_one(trainer.spec.check)
    if kept and max(map(len, (trainer.target, *(g.members for g in (trainer.group, trainer.forming) if g)))) > 1:
        yield f"{trainer.id} has more than one node, and {kept}"
    if trainer.proof.node is not None and trainer.proof.node not in core.pool.occupant:
        yield f"{trainer.id} is checked on {trainer.proof.node}, where nothing runs"
    if trainer.forming is not None and trainer.forming.generation != trainer.generation:
        yield f"{trainer.id} forms generation {trainer.forming.generation}, not its newest one {trainer.generation}"
    if trainer.outcome is not None and (
        trainer.workers or trainer.target or trainer.group or trainer.forming or trainer.writing
    ):
        yield f"{trainer.id} has ended and still has something"
    for node in trainer.holders():
        if len(trainer.replica_of(node)) != trainer.spec.nodes_per_replica:
            yield f"{trainer.id} has a part of a state on {node}, whose replica is not complete"
    if trainer.group is not None and (old := set(trainer.holders()).difference(*(g.members for g in trainer.groups))):
        yield f"{trainer.id} has an old state on {sorted(old)}, outside of its groups"
    if trainer.pausing and trainer.group is None:
        yield f"{trainer.id} pauses without a group"
    if (trainer.held or trainer.shelved) and trainer.target:
        yield f"{trainer.id} is promised nodes and held or shelved"
    if core.draining and trainer.target:
        yield f"{trainer.id} is promised nodes while the pool drains"


def _group(trainer: Trainer, group: Group) -> Iterator[str]:
    name = f"{trainer.id} generation {group.generation}"
    if len(set(group.members)) != len(group.members):
        yield f"{name} has a node twice: {group.members}"
    if not trainer.spec.min_nodes <= len(group.members) <= trainer.spec.max_nodes:
        yield f"{name} has {len(group.members)} members, outside [{trainer.spec.min_nodes}, {trainer.spec.max_nodes}]"
    if trainer.spec.sizes and len(group.members) not in trainer.spec.sizes:
        yield f"{name} has {len(group.members)} members, and the sizes are {trainer.spec.sizes}"
    if group.generation > trainer.generation:
        yield f"{name} is newer than the newest one granted, {trainer.generation}"
    if missing := [n for n in group.members if n not in trainer.workers]:
        yield f"{name} has members without a worker: {missing}"
    elif trainer.complete_replicas(group.members) != list(group.members):
        yield f"{name} has members whose replica is not complete, or not in order of place: {group.members}"
