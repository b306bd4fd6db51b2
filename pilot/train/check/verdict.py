"""``pilot check``: runs a script undisturbed and on courses, and judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import msgspec

from pilot.train.check.compare import Undisturbed
from pilot.train.check.courses import DIVIDED, NOT_TRACKED, Course, Shape, all_at_once, in_turn, single, undisturbed
from pilot.train.check.records import Record
from pilot.train.check.runs import Failed, Playing, Subject
from pilot.train.check.settings import NODES, Run
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
            once, rounded = self._undisturbed()
            return self._judged(once, rounded, _shape(once, self._nodes))
        except Failed as failed:
            text = f"{failed}{f'; {self._done}' if failed.late and self._done else ''}"
            return Verdict("refused" if failed.refused else "failed", text, self._by_design)

    def _undisturbed(self) -> tuple[list[Record], list[Record]]:
        """Alone, and with other roundings; in float64 if the script can, else in its own type."""
        self._progress("undisturbed, in float64")
        alone, rounded = self._both_alone()
        if alone.failed is not None and not (alone.failed.late or alone.failed.refused):
            self._run = msgspec.structs.replace(self._run, double=False)
            self._progress(f"undisturbed, in its own type; in float64 the script fails: {alone.failed}")
            alone, rounded = self._both_alone()
        once = _sound(alone)
        self._patience_s = max(_PATIENCE_S, _PATIENCE * alone.slowest_s)
        if self._nodes == 1 and any(record.per_node for record in once):
            self._nodes = NODES
            return self._undisturbed()
        return once, _sound(rounded)

    def _both_alone(self) -> list[Playing]:
        alone, rounded = undisturbed(self._nodes), msgspec.structs.replace(self._run, rounding=True)
        return self._played((self._run, alone), (rounded, alone))

    def _judged(self, once: list[Record], rounded: list[Record], shape: Shape) -> Verdict:
        self._by_design = sorted({name for record in once for name in record.by_design})
        self._progress("on a course: nodes come, are lost, and resume")
        course = all_at_once(shape)
        again, played = self._played((self._run, undisturbed(self._nodes)), (self._run, course))
        alone = Undisturbed(once, _sound(again), rounded)
        if played.failed is not None and played.failed.refused:
            raise played.failed
        if (unsteady := alone.not_reproducible()) is not None:
            text = f"undisturbed, it trains otherwise each time: {unsteady.in_words()}"
            return Verdict("not reproducible", text, self._by_design, unsteady.name)
        self._done = f"undisturbed, its {alone.steps} steps are reproducible"
        verdict = self._compared(alone, course, played)
        if verdict.passed:
            return verdict
        explaining = single(shape)
        if shape.nodes == 1 and any("not taken out" in name for name in self._by_design):
            self._progress("on a course without divided samples")  # random numbers of its own may differ where they are
            if (undivided := self._on(alone, in_turn(shape))).passed:
                return undivided
            explaining = explaining[1:]
        with suppress(Failed):  # no time is left for an explanation
            for one in explaining:
                self._progress(f"to explain a difference: {one.name}")
                if not (explained := self._on(alone, one)).passed:
                    return explained
        return verdict

    def _on(self, alone: Undisturbed, course: Course) -> Verdict:
        (played,) = self._played((self._run, course))
        return self._compared(alone, course, played, explain=course.means != DIVIDED)

    def _played(self, *wanted: tuple[Run, Course]) -> list[Playing]:
        """What these runs, all at the same time, have recorded."""
        with ExitStack() as stack:
            playing = []
            for run, course in wanted:
                playing.append(Playing(self._subject, run, course, self._patience_s))
                stack.callback(playing[-1].stop)
            for one in playing:
                one.end()
        return playing

    def _compared(self, alone: Undisturbed, course: Course, played: Playing, *, explain: bool = False) -> Verdict:
        """Of one run: it passed, or it differs."""
        if (found := alone.first_difference(played.records, explain=explain)) is not None:
            means = NOT_TRACKED if found.name.startswith(MODULE) else course.means
            text = f"{course.name}, {found.in_words()}: usually, {means}"
            return Verdict("differs", text, self._by_design, found.name, course.name)
        if played.failed is not None:
            if played.failed.late:
                raise played.failed
            return Verdict("differs", f"{course.name}, it fails: {played.failed}", self._by_design, "", course.name)
        kind = "float64" if self._run.double else "its own type"
        text = f"{alone.steps} steps train the same on changing nodes as undisturbed (in {kind})"
        if told := alone.reported_otherwise(played.records):
            text += f"; what it reports is of one node's samples only: {', '.join(told)}"
        return Verdict("different by design" if self._by_design else "equal", text, self._by_design)


def _sound(played: Playing) -> list[Record]:
    if played.failed is not None:
        raise played.failed
    return played.records[0]


def _shape(once: Sequence[Record], nodes: int) -> Shape:
    steps = [record for record in once if not record.last]
    is_by_epoch = any(record.by_epoch for record in steps)
    by_epoch = Counter(record.epoch for record in steps)
    counts = tuple(by_epoch.values()) if is_by_epoch else (len(steps),)
    return Shape(counts, max((record.sums for record in steps), default=1), is_by_epoch, nodes)
