"""A trainer: its allocation, its workers, its groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum

from pilot.core.commands import Outcome
from pilot.core.curves.curve import Curve
from pilot.core.curves.measured import Measured, RescaleCosts
from pilot.core.curves.profile import Profile
from pilot.core.curves.speeds import Speeds
from pilot.core.ids import NO_GENERATION, Generation, NodeId, TrainerId
from pilot.core.plan.objective import Objective
from pilot.core.plan.problem import Candidate
from pilot.core.pool.evidence import Evidence, headline
from pilot.core.pool.pool import Pool
from pilot.core.trainer.budget import Usage
from pilot.core.trainer.proof import Proof
from pilot.core.trainer.spec import TrainerSpec

LEAST_LEFT_S = 1.0


class WorkerPhase(StrEnum):
    """The phase of a worker."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


_NEXT = {
    WorkerPhase.STARTING: (WorkerPhase.READY, WorkerPhase.STOPPING),
    WorkerPhase.READY: (WorkerPhase.STOPPING,),
    WorkerPhase.STOPPING: (),
}
"""Which phase may follow which. A worker goes with its process, or with its node, in any phase."""


@dataclass(slots=True)
class Worker:
    """A trainer's process on one node."""

    #: deaths in a row of the trainer when it was started or its group formed: processes that die together count once
    attempt: int
    phase: WorkerPhase = WorkerPhase.STARTING
    slow: bool = False  #: the others do not wait for it: it has been starting for too long, or its node is silent
    has_state: bool = False  #: it was in a group, so it holds parameters that count
    alone_s: float = 0.0  #: the loop is over, and its script may run on for this long; 0: it may not
    interval_s: float | None = None  #: between its checkpoints; None: the site's interval
    replica: int = 0  #: the number of its replica; 0: it is one by itself

    def may_become(self, phase: WorkerPhase) -> bool:
        """Whether ``phase`` may follow the one that it is in."""
        return phase in _NEXT[self.phase]


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of one (trainer, generation), rank i on ``members[i]``; the first one leads."""

    generation: Generation
    members: tuple[NodeId, ...]


class Phase(StrEnum):
    """The phase of a trainer, for users and tests; decisions are made from the facts themselves."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    CLOSING = "closing"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STOPPED = "stopped"
    SHELVED = "shelved"
    COMPLETE = "complete"


ENDED = frozenset(map(Phase, Outcome))
"""The phases of a trainer that has ended."""

AT_REST = ENDED | {Phase.SHELVED, Phase.COMPLETE}
"""The phases that a trainer does not leave by itself; a shelved trial depends on its study."""


@dataclass(slots=True)
class Counts:
    """A trainer's counters."""

    rescales_up: int = 0
    rescales_down: int = 0
    preemptions: int = 0
    losses: int = 0
    worker_deaths: int = 0
    lost_steps: int = 0


@dataclass(frozen=True, slots=True)
class Unread:
    """No group could load its checkpoint, from ``since_s`` to ``last_s``; ``reason`` is of the last time."""

    since_s: float
    last_s: float
    reason: str


@dataclass(slots=True)
class Trainer:
    """One trainer in the core."""

    spec: TrainerSpec
    measured: Measured
    target: list[NodeId] = field(default_factory=list)  #: the nodes that the last plan gave it (its allocation)
    workers: dict[NodeId, Worker] = field(default_factory=dict)
    group: Group | None = None  #: trains
    forming: Group | None = None  #: will train
    pausing: bool = False  #: its group is to stop after an agreed step
    writing: dict[NodeId, None] = field(default_factory=dict)  #: the nodes whose checkpoint is awaited
    examining: Generation = NO_GENERATION  #: whose members are being examined
    synced: bool = False  #: all state holders hold the same state
    saved: bool = False  #: a checkpoint holds it, too
    failed_writes: int = 0
    generation: Generation = NO_GENERATION  #: the newest
    step: int = 0
    reached: int = 0  #: the step at which its state was lost; up to there steps are done again
    epoch: int = 0
    samples: int = 0
    deaths_in_a_row: int = 0
    died: dict[NodeId, None] = field(default_factory=dict)  #: nodes with deaths in groups since the last new step
    raised: dict[NodeId, str] = field(default_factory=dict)  #: the origins of exceptions since the last new step
    broken_in_a_row: int = 0
    refusal: str = ""  #: why no further worker can start: it does not grow until a node is tried again
    differs: str = ""  #: how gradients of nodes that joined differed: it does not grow until it is resumed
    evidence: Evidence = field(default_factory=Evidence)
    speeds: Speeds = field(default_factory=Speeds)  #: on nodes of several types
    excluded: dict[str, str] = field(default_factory=dict)  #: types that it cannot use, and why: it ran out of memory
    held: str = ""  #: why it gets no nodes
    shelved: str = ""  #: why it, a trial, gets no nodes until its study promotes it
    complete: bool = False  #: whether it is shelved because it has reached its study's last rung
    stops: bool = False  #: it ends once it has no nodes
    usage: Usage = field(default_factory=Usage)  #: of its workers
    total_samples: float | None = None  #: of its loop, as last reported
    profile: Profile = field(default_factory=Profile)
    proof: Proof = field(default_factory=Proof)
    interrupted_s: float = 0.0  #: when its last group formed
    saved_step: int = 0  #: the newest that a checkpoint is known to hold
    given_up: Generation = NO_GENERATION  #: its checkpoints of generations up to this one do not count
    unread: Unread | None = None  #: its checkpoint could not be loaded lately
    replicas: int = 0  #: how many of several nodes have been started
    code: dict[str, str] = field(default_factory=dict)  #: the SHA-256 of the first version of each file, by path
    closing: Outcome | None = None  #: it ends with this once its workers are gone
    outcome: Outcome | None = None
    reason: str = ""  #: of its end
    grew: bool = True  #: its last rescale was up
    counts: Counts = field(default_factory=Counts)

    @property
    def id(self) -> TrainerId:
        """The trainer's id."""
        return self.spec.trainer

    @property
    def open(self) -> bool:
        """Whether it may still get nodes."""
        return self.closing is None and self.outcome is None

    @property
    def plannable(self) -> bool:
        """Whether plans may give it nodes: it is neither held nor shelved."""
        return not (self.held or self.shelved)

    @property
    def ended_early(self) -> bool:
        """Whether it has ended, but not because its loop was over."""
        return self.outcome not in (None, Outcome.FINISHED)

    @property
    def rests(self) -> bool:
        """Whether it is held, and no worker of it is left."""
        return bool(self.held) and not (self.stops or self.workers)

    def reopen(self) -> None:
        """Continue after an end, with its measurements; earlier failures no longer count, and its code may have
        changed."""
        self.outcome, self.reason, self.held, self.shelved, self.stops, self.refusal = None, "", "", "", False, ""
        self.deaths_in_a_row, self.died, self.raised, self.broken_in_a_row, self.failed_writes = 0, {}, {}, 0, 0
        self.reached, self.unread, self.code, self.differs, self.excluded = 0, None, {}, "", {}
        self.proof = Proof.of(self.spec)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The group that trains and the one that forms, as far as there are any."""
        return tuple(group for group in (self.group, self.forming) if group is not None)

    def group_of(self, generation: Generation) -> Group | None:
        """The group of ``generation``, if it trains or forms."""
        return next((group for group in self.groups if group.generation == generation), None)

    @property
    def members(self) -> tuple[NodeId, ...]:
        """The members of the group that trains; () if none does."""
        return self.group.members if self.group is not None else ()

    @property
    def living(self) -> tuple[Generation, ...]:
        """Generations that may report its end: the newest, and the one that trains while that forms."""
        return (self.generation,) if self.group is None else (self.generation, self.group.generation)

    @property
    def phase(self) -> Phase:
        """The phase that follows from the facts."""
        if self.outcome is not None:
            return Phase(self.outcome.value)
        if self.closing is not None:
            return Phase.CLOSING
        if self.group is not None:
            return Phase.RUNNING
        if any(w.has_state for w in self.workers.values()):
            return Phase.PAUSED
        if self.target:
            return Phase.STARTING
        if self.shelved:
            return Phase.COMPLETE if self.complete else Phase.SHELVED
        return Phase.QUEUED

    @property
    def parked(self) -> bool:
        """Whether it holds a state on fewer nodes than it can run on."""
        few = 0 < len(self.target) < self.spec.min_nodes
        return few and any(map(self.holds_state, self.complete_replicas(self.target)))

    @property
    def refuses_to_grow(self) -> bool:
        """Whether it is parked and no plan could help it, because no further worker of it can start."""
        return bool(self.refusal) and self.parked

    def stays_at(self) -> tuple[int, str] | None:
        """At most how many nodes it may have now, and why, in words; None: it may grow."""
        most = max(self.spec.min_nodes, len(self.target))
        if self.refusal:
            return most, f"it cannot use further nodes: {headline(self.refusal)}"
        if why := self.proof.keeps_to_one(self.spec.check):
            return 1, why
        if self.differs:
            return most, f"it stays {'on one node' if most == 1 else f'at {most} nodes'}: {self.differs}"
        return None

    def holds_state(self, node: NodeId) -> bool:
        """Whether the worker on ``node`` holds a state that counts."""
        worker = self.workers.get(node)
        return worker is not None and worker.has_state

    def ready_on(self, node: NodeId) -> bool:
        """Whether a worker on ``node`` can join a group."""
        worker = self.workers.get(node)
        return worker is not None and worker.phase is WorkerPhase.READY

    def holders(self) -> list[NodeId]:
        """The nodes whose workers are ready and hold a state, in the order in which they started."""
        return [n for n, w in self.workers.items() if w.has_state and w.phase is WorkerPhase.READY]

    def replica_of(self, node: NodeId) -> list[NodeId]:
        """The nodes of the replica to which the worker on ``node`` belongs, in order of place."""
        number = self.workers[node].replica
        return [n for n, worker in self.workers.items() if worker.replica == number] if number else [node]

    def complete_replicas(self, nodes: Sequence[NodeId]) -> list[NodeId]:
        """``nodes`` without those whose replica is not complete among them, replica by replica, in order of place."""
        if self.spec.nodes_per_replica == 1:
            return list(nodes)
        among: dict[int, list[NodeId]] = {self.workers[n].replica: [] for n in nodes if n in self.workers}
        within = set(nodes)
        for node, worker in self.workers.items():
            if node in within:
                among[worker.replica].append(node)
        return [n for replica in among.values() if len(replica) == self.spec.nodes_per_replica for n in replica]

    def can_do_without(self, nodes: Sequence[NodeId]) -> bool:
        """Whether workers on other nodes hold the state, and are enough for a group, unless the present one pauses."""
        left = self.complete_replicas([n for n in self.workers if n not in nodes and self.ready_on(n)])
        return any(map(self.holds_state, left)) and (self.pausing or len(left) >= self.spec.min_nodes)

    def without(self, node: NodeId) -> Worker:
        """Remove and return its worker on ``node``. The others of its replica hold a part of the state that counts no
        more.
        """
        for mate in self.replica_of(node):
            self.workers[mate].has_state &= mate == node
            self.writing.pop(mate, None)
        self.proof = self.proof.without(node)
        return self.workers.pop(node)

    def run_on(self) -> list[NodeId]:
        """The nodes on which its script may run on now that its loop is over: its leader's replica."""
        leaders = self.members[: self.spec.nodes_per_replica] if self.group is not None else self.workers
        return [node for node in leaders if self.holds_state(node)]

    def lost_all(self, pool: Pool, went: Set[NodeId]) -> bool:
        """Whether no member of the training group stays, now that the nodes ``went`` are gone or have got a notice."""
        stays = self.complete_replicas([n for n in self.members if n in pool and n not in pool.leaving])
        return not stays and any(n in went for n in self.members)

    def lose(self, node: NodeId, *, announced: bool) -> None:
        """Record that its worker on ``node`` is gone, with the node."""
        if self.without(node).alone_s:
            self.reason += f"; {node} was lost before its script had ended"
        self.counts.losses += 0 if announced else 1

    def raised_elsewhere(self, node: NodeId, origin: str) -> NodeId | None:
        """Record that an exception of this ``origin`` ended the script on ``node``; returns another node on which
        that happened without a new step since.
        """
        self.raised[node] = origin
        others = (other for other, before in self.raised.items() if before == origin and other != node)
        return next(others, None) if origin else None

    def awaited_on(self, node: NodeId) -> bool:
        """Whether a worker on ``node`` will soon be able to join a group."""
        worker = self.workers.get(node)
        return worker is None or (worker.phase is not WorkerPhase.READY and not worker.slow)

    def room(self, pool: Pool) -> int:
        """The most nodes that it could use; if some are set aside for it, those of the pool that remain."""
        types = self.unfit_types(pool)
        if not (types or self.evidence.aside):
            return self.spec.max_nodes
        out, type_of = {**pool.leaving, **pool.aside, **pool.busy}, pool.type_of
        of_types = sum(pool.of_type[name] for name in types) - sum(type_of.get(n, "") in types for n in out)
        aside = (n in pool and n not in out and type_of.get(n, "") not in types for n in self.evidence.aside)
        return pool.usable - of_types - sum(aside)

    def avoids(self, pool: Pool) -> Callable[[NodeId], bool]:
        """Whether it must not get a node: it was set aside for it, or is of a type that it cannot use."""
        aside, types, type_of = self.evidence.aside, self.unfit_types(pool), pool.type_of
        return lambda node: node in aside or (bool(types) and type_of.get(node, "") in types)

    def unfit_types(self, pool: Pool) -> list[str]:
        """The types of nodes that it cannot use."""
        return [name for name in ("", *pool.types) if self.unfit(pool, name)]

    def unfit(self, pool: Pool, name: str) -> str:
        """Why it cannot use nodes of the type ``name``; "": it can, as far as is known."""
        there_gb = pool.types[name].memory_gb if name in pool.types else 0.0
        if self.spec.types and name not in self.spec.types:
            return f"it may only use {', '.join(self.spec.types)}"
        if 0 < there_gb < self.spec.memory_gb:
            return f"{name} has {there_gb:.4g} GB of memory, and it needs {self.spec.memory_gb:g}"
        return self.excluded.get(name, "")

    def left_s(self) -> float | None:
        """The remaining work, in seconds on one node; None if its length or its speed is not known yet.

        It is never less than :data:`LEAST_LEFT_S`: a trainer that runs beyond its estimated end is not done.
        """
        total = self.spec.samples if self.total_samples is None else self.total_samples
        rate = self.measured.curve.single_node_rate()
        if total is None or self.measured.guessed or rate <= 0:
            return None
        return max(LEAST_LEFT_S, (total - self.samples) / rate)

    def value(self, objective: Objective) -> Curve:
        """The trainer's value in plans, per second by node count."""
        return self.spec.objective_curve or objective(self.spec, self.measured.planned)

    def candidate(self, value: Curve, room: int, costs: RescaleCosts) -> Candidate:
        """The trainer as planners see it. ``value``: the objective's curve; ``room``: the most nodes that it could use;
        ``costs``: of rescales in its pool."""
        most, _ = self.stays_at() or (self.spec.max_nodes, "")
        most = max(self.spec.min_nodes, min(most, room))
        return Candidate(
            trainer=self.id,
            current_nodes=len(self.target),
            min_nodes=self.spec.min_nodes,
            max_nodes=most,
            value=value,
            rescale_up_s=self.measured.rescale_s(costs, up=True),
            rescale_down_s=self.measured.rescale_s(costs, up=False),
            sizes=self.spec.sizes,
        )
