"""``pilot check``: runs a script undisturbed and on courses, and judges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import msgspec

from pilot.train.check import courses
from pilot.train.check.compare import Difference, Undisturbed
from pilot.train.check.courses import Course, Shape
from pilot.train.check.records import Record
from pilot.train.check.runs import Failed, Played, Playing, Subject
from pilot.train.check.settings import Run
from pilot.train.check.values import MODULE

_PATIENCE, _PATIENCE_S = 10.0, 10.0
"""A rank waits for others so many times as long as the undisturbed one was ever on its own, but at least so long."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``script_class`` is `equal`, `different by design`, `differs`, `not reproducible`, `refused`, or `failed` on its
    own.
    """

    script_class: str
    text: str
    by_design: list[str] = field(default_factory=list)
    first_difference: str = ""
    course: str = ""

    @property
    def passed(self) -> bool:
        """Whether the script computes the same on several nodes as on one, apart from differences by design."""
        return self.script_class in ("equal", "different by design")


class Check:
    """Of one script. ``progress`` is told what runs now."""

    def __init__(self, subject: Subject, progress: Callable[[str], None]) -> None:
        self._subject = subject
        self._run = Run(subject.job.epochs, subject.job.steps, double=True)
        self._progress = progress
        self._nodes = 1
        self._by_design: list[str] = []
        self._done = ""
        self._patience_s: float | None = None

    def verdict(self) -> Verdict:
        """Run everything."""
        try:
            return self._judged()
        except Failed as failed:
            text = f"{failed}{f'; {self._done}' if failed.late and self._done else ''}"
            return Verdict("refused" if failed.refused else "failed", text, self._by_design)

    def _judged(self) -> Verdict:
        once, rounded = self._undisturbed()
        self._by_design = sorted({name for record in once for name in record.by_design})
        shape = _shape(once, self._nodes)
        self._progress("on a course: nodes come, are lost, and resume")
        again, disturbed = self._together([(self._run, self._nodes, None), (self._run, 0, courses.all_at_once(shape))])
        undisturbed = Undisturbed(once, _sound(again), rounded)
        if disturbed.failed is not None and disturbed.failed.refused:
            raise disturbed.failed
        if (unsteady := undisturbed.not_reproducible()) is not None:
            return Verdict(
                "not reproducible",
                f"undisturbed, it trains otherwise each time: {unsteady.in_words()}",
                self._by_design,
                unsteady.name,
            )
        self._done = f"undisturbed, its {len(once) - 1} steps are reproducible"
        drawn = [name for name in self._by_design if "not taken out" in name]
        if self._differs(undisturbed, disturbed) is None:
            return self._passed(once, undisturbed, disturbed)
        return self._explained(shape, undisturbed, disturbed, once, drawn=bool(drawn))

    def _undisturbed(self) -> tuple[list[Record], list[Record]]:
        """Alone, and with other roundings; in float64 if the script can, else in its own type."""
        self._progress("undisturbed, in float64")
        runs = self._both_alone()
        if runs[0].failed is not None and not (runs[0].failed.late or runs[0].failed.refused):
            self._run = msgspec.structs.replace(self._run, double=False)
            self._progress(f"undisturbed, in its own type; in float64 the script fails: {runs[0].failed}")
            runs = self._both_alone()
        once = _sound(runs[0])
        self._patience_s = max(_PATIENCE_S, _PATIENCE * runs[0].slowest_s)
        if self._nodes == 1 and any(record.per_node for record in once):
            self._nodes = self._run.nodes
            return self._undisturbed()
        return once, _sound(runs[1])

    def _both_alone(self) -> list[Played]:
        rounded = msgspec.structs.replace(self._run, rounding=True)
        return self._together([(self._run, self._nodes, None), (rounded, self._nodes, None)])

    def _together(self, wanted: Sequence[tuple[Run, int, Course | None]]) -> list[Played]:
        with ExitStack() as stack:
            playing = []
            for run, count, course in wanted:
                ends = course.ends if course is not None else ()
                playing.append(
                    Playing(self._subject, run, course.count if course is not None else count, ends, self._patience_s)
                )
                stack.callback(playing[-1].stop)
            return [one.result() for one in playing]

    def _explained(
        self, shape: Shape, undisturbed: Undisturbed, disturbed: Played, once: list[Record], *, drawn: bool
    ) -> Verdict:
        """By courses with one event each; what draws random numbers for itself may differ where samples are divided."""
        if drawn and shape.nodes == 1:
            self._progress("on a course without divided samples")
            (whole,) = self._together([(self._run, 0, courses.in_turn(shape))])
            if self._differs(undisturbed, whole) is None:
                return self._passed(once, undisturbed, whole)
        found = self._differs(undisturbed, disturbed)
        assert found is not None
        course = courses.all_at_once(shape)
        with suppress(Failed):  # no time is left for an explanation
            for one in courses.single(shape)[drawn and shape.nodes == 1 :]:
                self._progress(f"to explain a difference: {one.name}")
                (played,) = self._together([(self._run, 0, one)])
                if (difference := self._differs(undisturbed, played, explain=one.means != courses.DIVIDED)) is not None:
                    found, course = difference, one
                    break
        name = found.name if isinstance(found, Difference) else ""
        means = courses.NOT_TRACKED if name.startswith(MODULE) else course.means
        text = found if isinstance(found, str) else f"{found.in_words()}: usually, {means}"
        return Verdict("differs", f"{course.name}, {text}", self._by_design, name, course.name)

    def _differs(self, undisturbed: Undisturbed, played: Played, *, explain: bool = False) -> Difference | str | None:
        if (found := undisturbed.first_difference(played.records, explain=explain)) is not None:
            return found
        if played.failed is not None and played.failed.late:
            raise played.failed
        return f"it fails: {played.failed}" if played.failed is not None else None

    def _passed(self, once: list[Record], undisturbed: Undisturbed, played: Played) -> Verdict:
        kind = "float64" if self._run.double else "its own type"
        text = f"{len(once) - 1} steps train the same on changing nodes as undisturbed (in {kind})"
        if told := undisturbed.reported_otherwise(played.records):
            text += f"; what it reports is of one node's samples only: {', '.join(told)}"
        return Verdict("different by design" if self._by_design else "equal", text, self._by_design)


def _sound(played: Played) -> list[Record]:
    if played.failed is not None:
        raise played.failed
    return played.records[0]


def _shape(once: Sequence[Record], nodes: int) -> Shape:
    steps = [record for record in once if not record.last]
    by_epoch: dict[int, int] = {}
    for record in steps:
        by_epoch[record.epoch] = by_epoch.get(record.epoch, 0) + 1
    is_by_epoch = bool(steps) and steps[0].by_epoch
    counts = tuple(by_epoch.values()) if is_by_epoch else (len(steps),)
    return Shape(counts, max((record.sums for record in steps), default=1), is_by_epoch, nodes)
