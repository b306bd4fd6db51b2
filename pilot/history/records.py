"""The monitor's plain data about one trainer, one plan, or a set of trainers."""

from __future__ import annotations

from dataclasses import dataclass, field

from pilot.core.ids import NodeId

SPANS_KEPT = 200


@dataclass(frozen=True, slots=True)
class NodeSpan:
    """A trainer had a worker on ``node``, part of the scheduler's ``job`` ("" if none), over [start_s, end_s)."""

    node: NodeId
    job: str
    start_s: float
    end_s: float


@dataclass(slots=True)
class TrainerRecord:
    """One trainer. ``seconds_on`` is how long it trained on each number of nodes until ``settled_s``, less its measured
    pauses.

    ``nodes`` is the size of the group that is training, 0 if none is; ``known_step`` is the highest step reported.
    ``held_since_s`` has the nodes on which it has a worker, ``spans`` the last :data:`SPANS_KEPT` that have ended, and
    ``node_seconds`` the sum of all that have ended. ``failed_checkpoint``: why the newest one was not written.
    ``holds``: on each node, what keeps a process whose script has ended.
    ``lasting`` are the remarks that concern what it has trained. ``delayed``: for what its step waits, if for long.
    """

    submitted_s: float
    ended_s: float | None = None
    started_s: float | None = None
    nodes: int = 0
    generation: int = 0
    known_step: int = 0
    redone_steps: int = 0
    samples_per_s: float | None = None
    longest_stall_s: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    progress_s: float | None = None
    seconds_on: dict[int, float] = field(default_factory=dict)
    settled_s: float = 0.0
    remarks: list[str] = field(default_factory=list)
    lasting: list[str] = field(default_factory=list)
    delayed: str = ""
    failed_checkpoint: str = ""
    holds: dict[NodeId, str] = field(default_factory=dict)
    held_since_s: dict[NodeId, float] = field(default_factory=dict)
    spans: list[NodeSpan] = field(default_factory=list)
    node_seconds: float = 0.0

    def gives_back(self, node: NodeId, job: str, now_s: float) -> None:
        """Record that its worker on ``node`` has ended."""
        since_s = self.held_since_s.pop(node, None)
        if since_s is not None:
            self.node_seconds += now_s - since_s
            self.spans.append(NodeSpan(node, job, since_s, now_s))
            del self.spans[:-SPANS_KEPT]
        self.holds.pop(node, None)

    def held_node_seconds(self, now_s: float) -> float:
        """Node-seconds of its workers until now."""
        return self.node_seconds + sum(now_s - since_s for since_s in self.held_since_s.values())

    def settle(self, now_s: float) -> None:
        """Account for the time until ``now_s``, in which it trained on ``nodes``."""
        if self.nodes:
            self.seconds_on[self.nodes] = self.seconds_on.get(self.nodes, 0.0) + now_s - self.settled_s
        self.settled_s = now_s


@dataclass(frozen=True, slots=True)
class OpenFor:
    """How long some trainers were open together, and the pool's node-seconds during that time."""

    seconds: float = 0.0
    node_seconds: float = 0.0

    def __add__(self, other: OpenFor) -> OpenFor:
        return OpenFor(self.seconds + other.seconds, self.node_seconds + other.node_seconds)


@dataclass(frozen=True, slots=True)
class SolveTimes:
    """One plan's times."""

    build_s: float  #: to build the problem
    solve_s: float  #: to solve it
    answer_s: float  #: from the question to the plan, processes and queues included
