"""What one generation did in one epoch, as ranges of steps that are disjoint, whatever was reported and in what order.

Reports overlap: a leader tells its last ranges again when its group forms, and one that resumed from a checkpoint tells
the past as that checkpoint knew it, cut elsewhere. All of it is about the same steps, so what is known of one stays,
and a report adds only the steps that it is the first to tell. Each range's ends are points (step, cursor) that somebody
reported: where a report's end falls inside a range, the range is split there, and neighbours of one even batch are
joined again. A run that continues therefore needs one range, and a report that is false leaves a trace: a point off the
line, which makes the batches on its two sides differ, or another cursor at a step whose cursor is known (``disputed``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from pilot.core.events import LedgerRange


@dataclass(frozen=True, slots=True)
class _Known:
    """A range, and whether each of its steps is known to take the same number of samples.

    A report of several steps that ends an epoch may hide a smaller last step; one that others continue from cannot.
    """

    range: LedgerRange
    even: bool

    @classmethod
    def of(cls, report: LedgerRange) -> _Known:
        """As it was reported."""
        return cls(report, report.step_end - report.step == 1)

    def cut(self, step: int, cursor: int) -> list[_Known]:
        """The parts before and after the point (``step``, ``cursor``), which lies inside."""
        before = replace(self.range, step_end=step, cursor_end=cursor)
        after = replace(self.range, step=step, cursor=cursor)
        return [_Known(before, True), _Known(after, self.even or after.step_end - after.step == 1)]

    def takes(self, step: int, cursor: int) -> bool:
        """Whether the point, which lies inside, may be true."""
        own = self.range
        samples, steps = own.cursor_end - own.cursor, own.step_end - own.step
        return not self.even or (cursor - own.cursor) * steps == samples * (step - own.step)


@dataclass(slots=True)
class StepRanges:
    """Disjoint ranges of one generation and epoch, by step. ``disputed``: the first report that cannot be true."""

    disputed: LedgerRange | None = None
    _known: list[_Known] = field(default_factory=list)

    @property
    def ranges(self) -> list[LedgerRange]:
        """What is known, in the order of steps."""
        return [known.range for known in self._known]

    def add(self, report: LedgerRange) -> None:
        """Take in what ``report`` is the first to tell; it costs as much as the ranges that it touches."""
        low = bisect_left(self._known, report.step, key=lambda known: known.range.step_end)
        high = bisect_right(self._known, report.step_end, key=lambda known: known.range.step)
        low, high = max(0, low - 1), high + 1  # a split may leave parts that adjoin the next range
        known = [part for touched in self._known[low:high] for part in self._split(touched, report)]
        new = list(_untold(report, [part.range for part in known]))
        if report.step_end <= report.step or any(part.step == part.step_end for part in new):
            self._dispute(report)
        pieces = [_Known.of(part) for part in new if part.step < part.step_end]
        self._known[low:high] = _joined(sorted([*known, *pieces], key=lambda part: part.range.step))

    def _split(self, known: _Known, report: LedgerRange) -> list[_Known]:
        """``known``, cut where ``report`` begins and where it ends."""
        parts = [known]
        for step, cursor in ((report.step, report.cursor), (report.step_end, report.cursor_end)):
            last = parts[-1]
            if last.range.step < step < last.range.step_end:
                if not last.takes(step, cursor):
                    self._dispute(report)
                parts[-1:] = last.cut(step, cursor)
        return parts

    def _dispute(self, report: LedgerRange) -> None:
        self.disputed = self.disputed or report


def _untold(report: LedgerRange, known: Iterable[LedgerRange]) -> Iterator[LedgerRange]:
    """The parts of ``report`` between what is ``known``; one without steps where the cursors differ."""
    step, cursor = report.step, report.cursor
    for part in known:
        if part.step_end <= report.step or part.step >= report.step_end:
            continue
        if (part.step, part.cursor) != (step, cursor):
            yield replace(report, step=step, cursor=cursor, step_end=part.step, cursor_end=part.cursor)
        step, cursor = part.step_end, part.cursor_end
    if (step, cursor) != (report.step_end, report.cursor_end):
        yield replace(report, step=step, cursor=cursor)


def _joined(parts: Iterable[_Known]) -> list[_Known]:
    out: list[_Known] = []
    for part in parts:
        if out and _goes_on(out[-1].range, part.range):
            whole = replace(out[-1].range, step_end=part.range.step_end, cursor_end=part.range.cursor_end)
            out[-1] = _Known(whole, part.even)
        else:
            out.append(part)
    return out


def _goes_on(first: LedgerRange, second: LedgerRange) -> bool:
    """Whether all steps of both take the same number of samples, one range after the other."""
    if (first.step_end, first.cursor_end) != (second.step, second.cursor):
        return False
    batch, rest = divmod(first.cursor_end - first.cursor, first.step_end - first.step)
    return rest == 0 and second.cursor_end - second.cursor == batch * (second.step_end - second.step)
