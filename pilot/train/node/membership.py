"""Which generation a worker is in, and which comes next: a pure state machine.

It receives facts (messages from the agent and the rank processes); the session asks at its safe points what to do.

============  ===================================================================================================
state         meaning
============  ===================================================================================================
``current``   the generation that trains; None: parked, paused, or not in a group yet
``joining``   the newest generation that the agent told us to join, and that is not ``current`` yet
``parting``   the generation at whose start we stop and hold our state
============  ===================================================================================================

With every step a worker sends which generation it is *ready* for: ``joining`` when its rank process is in MPI, or
``parting``. All switch after the step in which all ranks are ready for the same one. A worker without ``current`` needs
no such agreement: it starts as soon as it is ready. Anything about a generation older than the newest known one is
ignored: that is the fence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Membership:
    """Rank ``rank`` of ``size`` in ``generation``; checkpoints of generations above ``given_up``, up to this one, may
    be loaded, and if ``saved_step`` is not 0, there is one.
    """

    generation: int
    rank: int
    size: int
    saved_step: int = 0
    given_up: int = 0


@dataclass(frozen=True, slots=True)
class Seat:
    """Which of its node's training processes this one is: ``rank`` of ``size``, the same number on all nodes."""

    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Seat:
        """According to the agent's environment; a script that runs alone has the node to itself."""
        return cls(int(environment.get("PILOT_LOCAL_RANK", 0)), int(environment.get("PILOT_LOCAL_SIZE", 1)))

    def member(self, generation: int, node: int, nodes: int, saved_step: int = 0, given_up: int = 0) -> Membership:
        """This process's membership in a group in which its node is number ``node`` of ``nodes``."""
        place = node * self.size + self.rank, nodes * self.size
        return Membership(generation, *place, saved_step, given_up)


class MembershipState:
    """See the module. Methods in the past tense record facts; the others answer questions."""

    def __init__(self) -> None:
        self.current: Membership | None = None
        self.joining: Membership | None = None
        self.parting: int | None = None
        self.pause_asked = False
        self._newest = 0
        self._ranks_here: set[int] = set()

    def join_requested(self, membership: Membership) -> None:
        """The agent sent ``JoinGroup``."""
        if membership.generation > self._newest:
            self._newest = membership.generation
            self.joining = membership
            self.parting = None

    def leave_requested(self, generation: int) -> None:
        """The agent sent ``LeaveGroup``."""
        if generation > self._newest:
            self._newest = generation
            self.joining = None
            self.parting = generation if self.current else None

    def pause_requested(self, generation: int) -> None:
        """The agent said ``PauseMembers``."""
        if self.current is not None and self.current.generation == generation:
            self.pause_asked = True

    def killed(self, generation: int) -> None:
        """The agent said ``KillGroup``: nothing of that generation will ever be."""
        self.rank_lost(generation)
        if self.joining is not None and self.joining.generation == generation:
            self.joining = None
        if self.parting == generation:
            self.parting = None

    def rank_connected(self, generation: int) -> bool:
        """Our rank process of ``generation`` is in MPI. Returns whether it is wanted."""
        if generation < self._newest or (self.current is not None and generation <= self.current.generation):
            return False
        self._ranks_here.add(generation)
        return True

    def rank_lost(self, generation: int) -> None:
        """Our rank process of ``generation`` has ended."""
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
        """The group to start now, without a switch, because none is in force."""
        return self.joining if self.current is None and self.ready_for else None

    def start(self, generation: int) -> Membership:
        """``generation``, for which we are ready, is in force from now on."""
        assert self.joining is not None
        assert self.joining.generation == generation
        self.current, self.joining, self.parting, self.pause_asked = self.joining, None, None, False
        return self.current

    def leave(self) -> None:
        """No generation is in force any more: its ranks are gone, or agreed to stop."""
        self.current, self.parting, self.pause_asked = None, None, False


def agreed(total: float, squares: float, size: int) -> int:
    """The generation that all ``size`` ranks are ready for (0: none), given the sum of their numbers and of the
    squares.

    By the Cauchy-Schwarz inequality the numbers are equal if and only if size · Σg² = (Σg)²; in float64 that is exact
    up to 2^26.
    """
    return int(total) // size if total > 0 and squares * size == total * total else 0
