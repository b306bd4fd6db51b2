"""What one generation did in one epoch, as ranges of steps that are disjoint, whatever was reported and in what order.

Reports overlap: a leader tells its last ranges again when its group forms, and one that resumed from a checkpoint tells
the past as that checkpoint knew it, cut elsewhere. All of it is about the same steps, so what is known of one stays,
and a report adds only the steps that it is the first to tell. Each range's ends are points (step, cursor) that somebody
reported: where a report's end falls inside a range, the range is split there, and neighbours of one even batch are
joined again. A run that goes on therefore needs one range, and a report that is false leaves a trace: a point off the
line, which makes the batches on its two sides differ, or another cursor at a step whose cursor is known (``disputed``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from pilot.core.events import LedgerRange


@dataclass(slots=True)
class StepRanges:
    """Disjoint ranges of one generation and epoch, by step. ``disputed``: the first report that cannot be true."""

    ranges: list[LedgerRange] = field(default_factory=list)
    disputed: LedgerRange | None = None

    def add(self, report: LedgerRange) -> None:
        """Take in what ``report`` is the first to tell; it costs as much as the ranges that it touches."""
        low = bisect_left(self.ranges, report.step, key=lambda known: known.step_end)
        high = bisect_right(self.ranges, report.step_end, key=lambda known: known.step)
        low, high = max(0, low - 1), high + 1  # a split may leave parts that go on from the next range
        known = [part for touched in self.ranges[low:high] for part in _split(touched, report)]
        new = list(_untold(report, known))
        if report.step_end <= report.step or any(part.step == part.step_end for part in new):
            self.disputed = self.disputed or report
        pieces = [part for part in new if part.step < part.step_end]
        self.ranges[low:high] = _joined(sorted([*known, *pieces], key=lambda part: part.step))


def _split(known: LedgerRange, report: LedgerRange) -> list[LedgerRange]:
    """``known``, cut where ``report`` begins and where it ends."""
    parts = [known]
    for step, cursor in ((report.step, report.cursor), (report.step_end, report.cursor_end)):
        last = parts[-1]
        if last.step < step < last.step_end:
            parts[-1:] = [replace(last, step_end=step, cursor_end=cursor), replace(last, step=step, cursor=cursor)]
    return parts


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


def _joined(parts: Iterable[LedgerRange]) -> list[LedgerRange]:
    out: list[LedgerRange] = []
    for part in parts:
        if out and _goes_on(out[-1], part):
            out[-1] = replace(out[-1], step_end=part.step_end, cursor_end=part.cursor_end)
        else:
            out.append(part)
    return out


def _goes_on(first: LedgerRange, second: LedgerRange) -> bool:
    """Whether all steps of both take the same number of samples, one range after the other."""
    if (first.step_end, first.cursor_end) != (second.step, second.cursor):
        return False
    batch, rest = divmod(first.cursor_end - first.cursor, first.step_end - first.step)
    return rest == 0 and second.cursor_end - second.cursor == batch * (second.step_end - second.step)
