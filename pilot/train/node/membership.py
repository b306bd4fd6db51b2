"""A worker's current and next generation: a pure state machine.

It records messages from the agent and the rank processes; the session asks at its safe points what to do.

============  ===================================================================================================
state         meaning
============  ===================================================================================================
``current``   the generation that trains; None: parked, paused, or not in a group yet
``joining``   the newest generation that the agent asked us to join, and that is not ``current`` yet
``parting``   the generation at whose start we leave, and keep our state
============  ===================================================================================================

With every step a worker sends the generation that it is *ready* for: ``joining`` when its rank process is in MPI, or
``parting``. All ranks switch after a step in which all are ready for the same generation. A worker without ``current``
starts as soon as it is ready. Messages about generations older than the newest one are ignored: that is the fence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Membership:
    """A worker's place in a group: rank ``rank`` of ``size`` in ``generation``. It may load checkpoints of generations
    above ``given_up``, up to this one; if ``saved_step`` is not 0, there is one.
    """

    generation: int
    rank: int
    size: int
    saved_step: int = 0
    given_up: int = 0


@dataclass(frozen=True, slots=True)
class Seat:
    """A training process's place in its replica: ``rank`` of ``size``, on ``nodes`` nodes (most often one). It never
    changes, and sizes are the same in all replicas.
    """

    rank: int = 0
    size: int = 1
    nodes: int = 1

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Seat:
        """Return the seat given by the agent's environment variables; a script that runs alone is 0 of 1."""
        here, nodes = cls.on_node(environment), int(environment.get("PILOT_REPLICA_NODES", 1))
        place = int(environment.get("PILOT_REPLICA_PLACE", 0))
        return cls(place * here.size + here.rank, nodes * here.size, nodes)

    @classmethod
    def on_node(cls, environment: Mapping[str, str]) -> Seat:
        """Return the process's place among those of its node."""
        return cls(int(environment.get("PILOT_LOCAL_RANK", 0)), int(environment.get("PILOT_LOCAL_SIZE", 1)))

    def member(self, generation: int, node: int, nodes: int, saved_step: int = 0, given_up: int = 0) -> Membership:
        """Return this process's membership in a group in which its node is number ``node`` of ``nodes``."""
        place = node // self.nodes * self.size + self.rank, nodes // self.nodes * self.size
        return Membership(generation, *place, saved_step, given_up)


class MembershipState:
    """The generations of one worker. Methods in the past tense record messages; the others answer questions."""

    def __init__(self) -> None:
        self.current: Membership | None = None
        self.joining: Membership | None = None
        self.parting: int | None = None
        self.pause_asked = False
        self._newest = 0
        self._ranks_here: set[int] = set()

    def join_requested(self, membership: Membership) -> None:
        """Record the agent's ``JoinGroup``."""
        if membership.generation > self._newest:
            self._newest = membership.generation
            self.joining = membership
            self.parting = None

    def leave_requested(self, generation: int) -> None:
        """Record the agent's ``LeaveGroup``."""
        if generation > self._newest:
            self._newest = generation
            self.joining = None
            self.parting = generation if self.current else None

    def pause_requested(self, generation: int) -> None:
        """Record the agent's ``PauseGroup``."""
        if self.current is not None and self.current.generation == generation:
            self.pause_asked = True

    def killed(self, generation: int) -> None:
        """Record the agent's ``DissolveGroup``: the generation will not train any more."""
        self.rank_lost(generation)
        if self.joining is not None and self.joining.generation == generation:
            self.joining = None
        if self.parting == generation:
            self.parting = None

    def rank_connected(self, generation: int) -> bool:
        """Record that our rank process of ``generation`` is in MPI; return whether it is needed."""
        if generation < self._newest or (self.current is not None and generation <= self.current.generation):
            return False
        self._ranks_here.add(generation)
        return True

    def rank_lost(self, generation: int) -> None:
        """Record that our rank process of ``generation`` has ended."""
        self._ranks_here.discard(generation)
        if self.current is not None and self.current.generation == generation:
            self.leave()

    @property
    def ready_for(self) -> int:
        """The generation to which this worker could switch after this step; 0: none."""
        if self.joining is not None and self.joining.generation in self._ranks_here:
            return self.joining.generation
        return self.parting or 0

    def startable(self) -> Membership | None:
        """Return the group to start now, without a switch, because none is in force; None if there is none."""
        return self.joining if self.current is None and self.ready_for else None

    def start(self, generation: int) -> Membership:
        """Make ``generation``, for which we are ready, the current one."""
        assert self.joining is not None
        assert self.joining.generation == generation
        self.current, self.joining, self.parting, self.pause_asked = self.joining, None, None, False
        return self.current

    def leave(self) -> None:
        """Leave the current generation: its ranks are gone, or agreed to stop."""
        self.current, self.parting, self.pause_asked = None, None, False


def agreed(total: float, squares: float, size: int) -> int:
    """Return the number that each of ``size`` ranks added to ``total``, and its square to ``squares``; 0: not the same.

    By the Cauchy-Schwarz inequality the numbers are equal if and only if size · Σg² = (Σg)²; in float64 that is exact
    up to 2^26.
    """
    return int(total) // size if total > 0 and squares * size == total * total else 0
