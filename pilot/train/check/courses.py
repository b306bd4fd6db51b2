"""What happens to a script's ranks on a course: nodes that come, die, and resume, at steps that a short run has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pilot.train.check.world import End, Keep

_ALL, _SECOND = (True,), (False, True)
"""The second of three; of those that die the heir is never one."""


@dataclass(frozen=True)
class Shape:
    """Of the undisturbed run: ``steps`` of each epoch (of a loop that counts iterations: one epoch), and the sums of a
    step; ``by_epoch``: the script's loop counts epochs. ``nodes``: 1, or the number that must never change.
    """

    steps: tuple[int, ...]
    sums: int
    by_epoch: bool
    nodes: int


@dataclass(frozen=True)
class Course:
    """``count`` ranks whose generations end so. ``name``: what happens, in words; ``means``: what a difference usually
    means.
    """

    name: str
    count: int
    ends: tuple[End, ...]
    means: str


_KEPT_NOWHERE = (
    "a value that the script sets before or in its loop is not declared: keep it in session.state, track what holds it,"
    " or derive it from session.steps"
)
NOT_TRACKED = "the script trains it beside the session's model, and has to track it (session.track)"
DIVIDED = (
    "the loss is no mean over the batch's samples (a sum; divided by something else, then pass weight=; or a sample's"
    " loss depends on the others in its batch)"
)


@dataclass
class _Plan:
    """Ends, one after the other; an event for which there is no room is left out."""

    shape: Shape
    ends: list[End] = field(default_factory=list)
    _begins: int = 0
    """The step with which the generation begins, from which its end is counted."""

    def at(self, epoch: int, step: int, *, first: bool = False, **end: Any) -> bool:
        """So many steps after an epoch's first one, or in the last one: at its last sum, when the others of several
        optimizers have been stepped; ``first``: at its first one. False: there is no room.
        """
        number = min(sum(self.shape.steps[:epoch]) + step, sum(self.shape.steps) - 1)
        if epoch >= len(self.shape.steps) or number < self._begins:
            return False
        operation = (number - self._begins) * self.shape.sums + (0 if first else self.shape.sums - 1)
        self.ends.append(End(operation, at="step", **end))
        self._begins = number if end.get("void") else number + 1
        return True

    def at_end_of(self, epoch: int, **end: Any) -> bool:
        """In the meeting at an epoch's end, if another epoch follows."""
        number = sum(self.shape.steps[: epoch + 1])
        if not self.shape.by_epoch or epoch + 1 >= len(self.shape.steps) or number < self._begins:
            return False
        self.ends.append(End(0, at="meeting", **end))
        self._begins = number
        return True

    def resume_within(self, epoch: int, come: int = 0) -> None:
        """All nodes are lost within an epoch, one step after the state was kept; ``come`` others resume (0: as many as
        undisturbed).
        """
        kept, come = sum(self.shape.steps[:epoch]) + 1, come or self.shape.nodes
        if kept >= self._begins and self.at(epoch, 2, void=True, come=come, resume=Keep(kept, 0)):
            self._begins = kept

    def resume_at_end(self, epoch: int) -> None:
        """They are lost at its end."""
        self.at_end_of(epoch, come=self.shape.nodes, resume=Keep(sum(self.shape.steps[: epoch + 1])))

    def replace(self, epoch: int, step: int) -> None:
        """A node comes, and stays alone; or it takes another's place."""
        if self.shape.nodes > 1:
            self.at(epoch, step, die=_ALL, come=1)
            self.at(epoch, step + 1, die=_ALL, heir="newest", come=1)
        elif self.at(epoch, step, come=1):
            self.at(epoch, step + 2, void=True, first=True, die=_ALL, heir="newest")

    def replace_at_end(self, epoch: int) -> None:
        """The same in the meeting at an epoch's end."""
        if self.shape.nodes > 1:
            self.at_end_of(epoch, die=_ALL, come=1)
        elif self.at_end_of(epoch, come=1):
            self.at(epoch + 1, 1, void=True, first=True, die=_ALL, heir="newest")

    def lose(self, epoch: int, step: int) -> None:
        """A node is lost in a step; alone, it survives a step that does not count."""
        lost: dict[str, Any] = {"die": _ALL, "come": 1} if self.shape.nodes > 1 else {}
        self.at(epoch, step, void=True, **lost)

    def course(self, name: str, count: int) -> Course:
        """What it has become."""
        return Course(name, count, tuple(self.ends), _KEPT_NOWHERE)


def undisturbed(count: int) -> Course:
    """Nothing happens to these ranks."""
    return Course("undisturbed", count, (), "")


def all_at_once(shape: Shape) -> Course:
    """Everything that may happen to a script whose samples may be divided."""
    if shape.nodes > 1:
        return in_turn(shape)
    plan = _Plan(shape)
    plan.at(0, 1, come=1)
    plan.at(0, 3, void=True, die=_SECOND)
    plan.at_end_of(0, come=1)
    plan.resume_within(1, 2)
    plan.resume_at_end(1)
    plan.at(2, 1, come=1)
    plan.at(2, 2, void=True, die=_ALL, heir="newest")
    return plan.course("all at once", 2)


_IN_TURN: tuple[tuple[str, Callable[[_Plan], None]], ...] = (
    ("when a node joins within an epoch", lambda plan: plan.replace(0, 1)),
    ("when a node is lost in the middle of a step", lambda plan: plan.lose(0, 4)),
    ("when a node joins for the next epoch", lambda plan: plan.replace_at_end(0)),
    ("when all nodes are lost and it resumes within an epoch", lambda plan: plan.resume_within(0)),
    ("when all nodes are lost and it resumes within a later epoch", lambda plan: plan.resume_within(1)),
    ("when all nodes are lost and it resumes at an epoch's end", lambda plan: plan.resume_at_end(1)),
    ("when a node joins within a later epoch", lambda plan: plan.replace(2, 1)),
)


def in_turn(shape: Shape) -> Course:
    """The same without that a step's samples are ever divided otherwise than undisturbed."""
    plan = _Plan(shape)
    for _, happens in _IN_TURN:
        happens(plan)
    return plan.course("one after the other", shape.nodes)


def single(shape: Shape) -> list[Course]:
    """One event each, to explain a difference; first, with three ranks, whose shares are mostly uneven, none."""
    found = [Course("on several nodes", 3, (), DIVIDED)] if shape.nodes == 1 else []
    for name, happens in _IN_TURN:
        happens(plan := _Plan(shape))
        if plan.ends:
            found.append(plan.course(name, shape.nodes))
    return found
