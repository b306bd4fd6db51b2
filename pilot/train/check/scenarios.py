"""Scenarios of ``pilot check``: nodes join, die and resume, at steps that a short run reaches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pilot.train.check.world import End, SavePoint

_ALL, _SECOND = (True,), (False, True)
"""``End.die`` for all ranks, and for the second of three. The heir never dies."""


@dataclass(frozen=True)
class RunShape:
    """The undisturbed run: ``steps`` per epoch (a loop over iterations counts as one epoch), ``sums`` per step, whether
    the script loops over epochs (``by_epoch``), and ``nodes``: 1, or the number that must never change.
    """

    steps: tuple[int, ...]
    sums: int
    by_epoch: bool
    nodes: int


@dataclass(frozen=True)
class Scenario:
    """``count`` ranks, and the ``ends`` of their generations; ``means`` is the usual cause of a difference."""

    name: str
    count: int
    ends: tuple[End, ...]
    means: str


_NOT_DECLARED = (
    "a value that the script sets before or in its loop is not declared: keep it in session.state, track the object"
    " that holds it, or derive it from session.steps"
)
NOT_TRACKED = "the script trains it beside the session's model without session.track"
DIVIDED = (
    "the loss is not a mean over the batch's samples (a sum; a division by something else, which needs weight=; or a"
    " sample's loss that depends on the others in its batch)"
)


@dataclass
class _ScenarioBuilder:
    """Collects the ends of consecutive generations; events that do not fit into the run are left out."""

    shape: RunShape
    ends: list[End] = field(default_factory=list)
    _begins: int = 0
    """The first step of the current generation, from which its end is counted."""

    def at(self, epoch: int, step: int, *, first: bool = False, **end: Any) -> bool:
        """End the generation ``step`` steps after the epoch's first one (at most in the run's last step), at the step's
        last sum or, with ``first``, its first one. Return whether it fits.
        """
        number = min(sum(self.shape.steps[:epoch]) + step, sum(self.shape.steps) - 1)
        if epoch >= len(self.shape.steps) or number < self._begins:
            return False
        operation = (number - self._begins) * self.shape.sums + (0 if first else self.shape.sums - 1)
        self.ends.append(End(operation, at="step", **end))
        self._begins = number if end.get("void") else number + 1
        return True

    def at_end_of(self, epoch: int, **end: Any) -> bool:
        """End the generation in the agreement at an epoch's end. Return whether it fits: another epoch must follow."""
        number = sum(self.shape.steps[: epoch + 1])
        if not self.shape.by_epoch or epoch + 1 >= len(self.shape.steps) or number < self._begins:
            return False
        self.ends.append(End(0, at="agreement", **end))
        self._begins = number
        return True

    def resume_within(self, epoch: int, come: int = 0) -> None:
        """Lose all nodes within an epoch, a step after a save; ``come`` nodes resume (0: the usual number)."""
        saved, come = sum(self.shape.steps[:epoch]) + 1, come or self.shape.nodes
        if saved >= self._begins and self.at(epoch, 2, void=True, come=come, resume=SavePoint(saved, 0)):
            self._begins = saved

    def resume_at_end(self, epoch: int) -> None:
        """Lose all nodes at an epoch's end, and resume from there."""
        self.at_end_of(epoch, come=self.shape.nodes, resume=SavePoint(sum(self.shape.steps[: epoch + 1])))

    def replace(self, epoch: int, step: int) -> None:
        """Let a node join, and then lose the first one; with a fixed number of nodes, exchange one for a new one."""
        if self.shape.nodes > 1:
            self.at(epoch, step, die=_ALL, come=1)
            self.at(epoch, step + 1, die=_ALL, heir="newest", come=1)
        elif self.at(epoch, step, come=1):
            self.at(epoch, step + 2, void=True, first=True, die=_ALL, heir="newest")

    def replace_at_end(self, epoch: int) -> None:
        """Like :meth:`replace`, in the agreement at an epoch's end."""
        if self.shape.nodes > 1:
            self.at_end_of(epoch, die=_ALL, come=1)
        elif self.at_end_of(epoch, come=1):
            self.at(epoch + 1, 1, void=True, first=True, die=_ALL, heir="newest")

    def lose(self, epoch: int, step: int) -> None:
        """Lose a node in a step; a single node survives, but its step is void."""
        lost: dict[str, Any] = {"die": _ALL, "come": 1} if self.shape.nodes > 1 else {}
        self.at(epoch, step, void=True, **lost)

    def scenario(self, name: str, count: int) -> Scenario:
        """Return the scenario of the collected ends."""
        return Scenario(name, count, tuple(self.ends), _NOT_DECLARED)


def undisturbed(count: int) -> Scenario:
    """Return the scenario of ``count`` ranks without any event."""
    return Scenario("undisturbed", count, (), "")


def all_at_once(shape: RunShape) -> Scenario:
    """Return the scenario with all kinds of events, in which the number of ranks changes if the script allows it."""
    if shape.nodes > 1:
        return in_turn(shape)
    plan = _ScenarioBuilder(shape)
    plan.at(0, 1, come=1)
    plan.at(0, 3, void=True, die=_SECOND)
    plan.at_end_of(0, come=1)
    plan.resume_within(1, 2)
    plan.resume_at_end(1)
    plan.at(2, 1, come=1)
    plan.at(2, 2, void=True, die=_ALL, heir="newest")
    return plan.scenario("all at once", 2)


_IN_TURN: tuple[tuple[str, Callable[[_ScenarioBuilder], None]], ...] = (
    ("when a node joins within an epoch", lambda plan: plan.replace(0, 1)),
    ("when a node is lost in the middle of a step", lambda plan: plan.lose(0, 4)),
    ("when a node joins for the next epoch", lambda plan: plan.replace_at_end(0)),
    ("when all nodes are lost and it resumes within an epoch", lambda plan: plan.resume_within(0)),
    ("when all nodes are lost and it resumes within a later epoch", lambda plan: plan.resume_within(1)),
    ("when all nodes are lost and it resumes at an epoch's end", lambda plan: plan.resume_at_end(1)),
    ("when a node joins within a later epoch", lambda plan: plan.replace(2, 1)),
)


def in_turn(shape: RunShape) -> Scenario:
    """Return the scenario with all kinds of events in which each step's samples are divided as undisturbed."""
    plan = _ScenarioBuilder(shape)
    for _, add in _IN_TURN:
        add(plan)
    return plan.scenario("one after the other", shape.nodes)


def single(shape: RunShape) -> list[Scenario]:
    """Return scenarios with one event each, to explain a difference; the first has three ranks and no event."""
    found = [Scenario("on several nodes", 3, (), DIVIDED)] if shape.nodes == 1 else []
    for name, add in _IN_TURN:
        add(plan := _ScenarioBuilder(shape))
        if plan.ends:
            found.append(plan.scenario(name, shape.nodes))
    return found
