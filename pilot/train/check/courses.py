"""What happens to a script's ranks on a course: nodes that come, die, and resume, at steps that a short run has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pilot.train.check.world import End, Keep

_ALL, _NONE, _SECOND = (True,), (False,), (False, True)
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

    def at(self, epoch: int, step: int) -> int | None:
        """The number of a step, counted from an epoch's first one; None: there is no such epoch."""
        if epoch >= len(self.steps):
            return None
        return sum(self.steps[:epoch]) + min(step, self.steps[epoch] - 1)


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
    """Ends, one after the other: each counts the sums from where its generation begins."""

    shape: Shape
    ends: list[End] = field(default_factory=list)
    _begins: int = 0

    def at(self, step: int | None, *, void: bool, first: bool = False, **end: Any) -> bool:
        """At the last sum of ``step``: of several optimizers the others have been stepped. ``first``: at the first one.
        False: there is no room.
        """
        if step is None or step < self._begins:
            return False
        options: dict[str, Any] = {"receive": _ALL, "die": _NONE, "come": 0} | end
        operation = (step - self._begins) * self.shape.sums + (0 if first else self.shape.sums - 1)
        self.ends.append(End(operation, void=void, at="step", **options))
        keep = options.get("resume")
        self._begins = keep.step if isinstance(keep, Keep) else step + (not void)
        return True

    def at_end_of(self, epoch: int, **end: Any) -> bool:
        """In the meeting at an epoch's end, if another epoch follows."""
        if not self.shape.by_epoch or epoch + 1 >= len(self.shape.steps):
            return False
        options: dict[str, Any] = {"receive": _ALL, "die": _NONE, "come": 0} | end
        self.ends.append(End(0, at="meeting", **options))
        self._begins = sum(self.shape.steps[: epoch + 1])
        return True


def divided() -> Course:
    """Three ranks, whose shares are mostly uneven; nothing else."""
    return Course("on several nodes", 3, (), DIVIDED)


def all_at_once(shape: Shape) -> Course:
    """Everything that may happen to a script whose samples may be divided."""
    if shape.nodes > 1:
        return in_turn(shape)
    plan = _Plan(shape)
    plan.at(shape.at(0, 1), void=False, come=1)
    plan.at(shape.at(0, 3), void=True, die=_SECOND)
    plan.at_end_of(0, come=1)
    _resume_within(plan, 1, 2)
    _resume_at_end(plan, 1, 1)
    plan.at(shape.at(2, 1), void=False, come=1)
    plan.at(shape.at(2, 2), void=True, die=_ALL, heir="newest")
    return Course("all at once", 2, tuple(plan.ends), _KEPT_NOWHERE)


def in_turn(shape: Shape) -> Course:
    """The same without that a step's samples are ever divided otherwise than undisturbed."""
    plan = _Plan(shape)
    _hand_over(plan, 0, 1)
    plan.at(shape.at(0, 4), void=True, **_replaced(shape))
    _join_at_end(plan, 0)
    _resume_within(plan, 1, shape.nodes)
    _resume_at_end(plan, 1, shape.nodes)
    _hand_over(plan, 2, 1)
    return Course("one after the other", shape.nodes, tuple(plan.ends), _KEPT_NOWHERE)


def single(shape: Shape) -> list[Course]:
    """One event each, to explain a difference."""
    found = [divided()] if shape.nodes == 1 else []
    for name, begin in (
        ("when a node joins within an epoch", lambda plan: _hand_over(plan, 0, 1)),
        (
            "when a node is lost in the middle of a step",
            lambda plan: plan.at(shape.at(0, 2), void=True, **_replaced(shape)),
        ),
        ("when a node joins for the next epoch", lambda plan: _join_at_end(plan, 0)),
        ("when all nodes are lost and it resumes within an epoch", lambda plan: _resume_within(plan, 0, shape.nodes)),
        (
            "when all nodes are lost and it resumes within a later epoch",
            lambda plan: _resume_within(plan, 1, shape.nodes),
        ),
        ("when all nodes are lost and it resumes at an epoch's end", lambda plan: _resume_at_end(plan, 0, shape.nodes)),
    ):
        plan = _Plan(shape)
        begin(plan)
        if plan.ends:
            found.append(Course(name, shape.nodes, tuple(plan.ends), _KEPT_NOWHERE))
    return found


def _replaced(shape: Shape) -> dict[str, Any]:
    """A node is lost in a step; alone, it survives a step that does not count."""
    return {"die": _ALL, "come": 1} if shape.nodes > 1 else {}


def _hand_over(plan: _Plan, epoch: int, step: int) -> None:
    """A node comes, and stays alone; or it takes another's place."""
    shape = plan.shape
    if shape.nodes > 1:
        plan.at(shape.at(epoch, step), void=False, die=_ALL, come=1)
        plan.at(shape.at(epoch, step + 1), void=False, die=_ALL, heir="newest", come=1)
    elif plan.at(shape.at(epoch, step), void=False, come=1):
        plan.at(_later(shape, epoch, step + 2), void=True, first=True, die=_ALL, heir="newest")


def _join_at_end(plan: _Plan, epoch: int) -> None:
    shape = plan.shape
    if shape.nodes > 1:
        plan.at_end_of(epoch, die=_ALL, come=1)
    elif plan.at_end_of(epoch, come=1):
        plan.at(shape.at(epoch + 1, 1), void=True, first=True, die=_ALL, heir="newest")


def _resume_within(plan: _Plan, epoch: int, come: int) -> None:
    shape = plan.shape
    first, step = shape.at(epoch, 0), shape.at(epoch, 2)
    if first is not None and step is not None and step > first:
        plan.at(step, void=True, come=come, resume=Keep(step - 1, 0))


def _resume_at_end(plan: _Plan, epoch: int, come: int) -> None:
    plan.at_end_of(epoch, come=come, resume=Keep(sum(plan.shape.steps[: epoch + 1])))


def _later(shape: Shape, epoch: int, step: int) -> int | None:
    """Also in the next epoch."""
    while epoch < len(shape.steps) and step >= shape.steps[epoch]:
        epoch, step = epoch + 1, step - shape.steps[epoch]
    return shape.at(epoch, step)
