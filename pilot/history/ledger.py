"""The ledger: which samples a trainer's parameters were trained on, and the proof that each was used once per epoch.

Records are ranges: samples [cursor, cursor_end) of an epoch went into steps [step, step_end) of a generation. A
generation's first record voids what earlier generations recorded at or beyond its step: those steps were lost or
redone. What is left is the *lineage*. Records may arrive late, twice, split differently and in any order: they are made
disjoint and merged when they are recorded (:mod:`pilot.history.ledger`), so a trainer's ledger grows with its
generations and epochs and not with its steps.

Within one generation all steps of an epoch use the same number of samples, except the epoch's last one, and the
generation's first one, in which nodes may rehearse. So where a record is voided in part, the cursor at the cut follows
from that rule, and it is checked. Nodes that train in rounds have other records: :mod:`pilot.history.rounds_ledger`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from pilot.core.events import LedgerRange
from pilot.core.ids import Generation
from pilot.history.words import counted
from pilot.protocol.pool_status import Answer
from pilot.protocol.run_identity import ORDERED_BY, PER_NODE, AcceptedChange, Samples, before, in_rounds

if TYPE_CHECKING:
    from pilot.history.rounds_ledger import RoundLineage

NUMBERS = attrgetter("generation", "epoch", "step", "step_end", "cursor", "cursor_end")
"""A record's six numbers."""


class LedgerProof(Answer, frozen=True):
    """What the ledger proves about a trainer's samples."""

    proved: bool  #: whether every sample was used exactly once per epoch, as far as the trainer got
    text: str  #: the proof or the gap in words
    epochs: int  #: complete epochs in the ledger; a stream's last one counts as far as it was read
    samples: int  #: samples in the ledger, over all epochs
    steps: int  #: steps in the ledger; those that were repeated count once
    voided_steps: int  #: steps that were repeated because no node, complete replica or checkpoint kept their result
    rounds: int = 0  #: rounds in the ledger, if its nodes train in rounds; then a record is an interval of a round


@dataclass(slots=True)
class Ledger:
    """The records of one trainer."""

    identity: Mapping[str, str] = field(default_factory=dict)
    """The run's identity, in words by name, as a leader last reported it."""
    accepted: tuple[AcceptedChange, ...] = ()
    """Changes of the identity that were accepted at resumes, in order."""
    finished_step: int | None = None
    """The step at which its script finished; None: it has not."""
    _epochs: dict[Generation, dict[int, StepRanges]] = field(default_factory=dict)
    _rounds: array[int] = field(default_factory=lambda: array("q"))
    """The reported records of rounds, six numbers each."""
    _began: dict[Generation, int] = field(default_factory=dict)

    def began(self, generation: Generation, step: int) -> None:
        """Record that ``generation`` trains from ``step`` on: that voids all earlier records from there on, even if its
        own first record is missing.
        """
        self._began[generation] = min(step, self._began.get(generation, step))

    def add(self, records: Iterable[LedgerRange]) -> None:
        """Add a leader's records."""
        for record in records:
            if in_rounds(self.identity, self.accepted, record.step):
                self._rounds.extend(NUMBERS(record))
                self.began(record.generation, record.step)
            else:
                self._epochs.setdefault(record.generation, {}).setdefault(record.epoch, StepRanges()).add(record)

    def rounds(self) -> RoundLineage | None:
        """The rounds behind the current parameters, with the steps before; None: nodes never trained in rounds."""
        if not self._rounds:
            return None
        from pilot.history.rounds_ledger import RoundLineage  # it needs NumPy, which other users of ledgers do not load

        voids = {generation: cut.step if cut is not None else None for generation, cut in self._cuts()}
        return RoundLineage.of(self._rounds, voids, self.lineage())

    def lineage(self) -> list[LedgerRange]:
        """The records behind the current parameters, in order of steps; a record that was voided in part ends there."""
        newest_first = [list(_before(self._own(generation), cut)) for generation, cut in self._cuts()]
        return [record for own in reversed(newest_first) for record in own]

    def _cuts(self) -> Iterator[tuple[Generation, _Cut | None]]:
        """The generations, the newest first, each with where later ones void it."""
        cut: _Cut | None = None
        for generation in sorted(self._epochs.keys() | self._began.keys(), reverse=True):
            yield generation, cut
            begin = self._begin(generation)
            if begin is not None and (cut is None or begin.step < cut.step):
                cut = begin

    def _own(self, generation: Generation) -> list[LedgerRange]:
        """The records of ``generation``, in order of steps."""
        known = [record for epoch in self._epochs.get(generation, {}).values() for record in epoch.ranges]
        return sorted(known, key=lambda record: (record.step, record.epoch))

    def _begin(self, generation: Generation) -> _Cut | None:
        first = next(iter(self._own(generation)), None)
        began = self._began.get(generation)
        if first is None or (began is not None and began < first.step):
            return _Cut(began, None) if began is not None else None
        return _Cut(first.step, first)

    def voided_steps(self) -> int:
        """Recorded steps that a later generation repeated."""
        recorded = sum(_covered(self._own(generation)) for generation in self._epochs)
        return recorded - _covered(self.lineage())

    def _disputed(self) -> str:
        """A report that contradicts another one about steps that count."""
        for generation, cut in self._cuts():
            for epoch in self._epochs.get(generation, {}).values():
                record = epoch.disputed
                if record is not None and (cut is None or record.step < cut.step):
                    return f"{where(record)}: reported with other samples as well"
        return ""

    def exactly_once(
        self, sizes: Mapping[int, int], rounds: RoundLineage | None = None, problem: str = "", *, ends: bool = True
    ) -> LedgerProof:
        """Check that the lineage covers epochs 0, 1, … of ``sizes`` samples each, without gaps and once; if it
        ``ends``, to the end of the last one. ``rounds``: those in it; ``problem``: one that is known already.
        """
        lineage, voided = self.lineage(), self.voided_steps()
        problem = problem or self._disputed()
        generations = len({record.generation for record in lineage})
        what, how = f"{counted(len(lineage), 'record')} of {counted(generations, 'generation')}", "contiguous"
        if rounds is None:
            problem = problem or _first_gap(lineage, sizes, ends)
        else:
            problem = problem or rounds.gap(sizes, ends)
            lineage, voided, what, how = rounds.epochs(), voided + rounds.voided_steps, rounds.what, "disjoint"
        last = lineage[-1] if lineage else None
        is_complete = last is None or last.cursor_end == sizes.get(last.epoch)
        more = f" and {counted(last.cursor_end, 'sample')} of the next" if last and not is_complete else ""
        done, steps = (last.epoch + is_complete, last.step_end) if last else (0, 0)
        samples = sum(record.cursor_end - record.cursor for record in lineage)
        text = (
            f"{what} cover {counted(done, 'epoch')}{more}, {counted(samples, 'sample')}, in {counted(steps, 'step')}:"
            f" {how}, each sample once per epoch; {counted(voided, 'recorded step')} voided"
        )
        count = rounds.count if rounds is not None else 0
        return LedgerProof(not problem, problem or text, done, samples, steps, voided, count)


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where a later generation begins, and its first record, if it has been reported."""

    step: int
    first: LedgerRange | None

    def cursor(self, record: LedgerRange) -> int:
        """Where ``record``, which extends beyond the cut, ends: known from the later generation's first record, or from
        its own even steps."""
        if self.first is None or self.first.epoch != record.epoch:
            return record.cursor + (self.step - record.step) * _batch(record)
        return self.first.cursor


def _before(own: list[LedgerRange], cut: _Cut | None) -> Iterator[LedgerRange]:
    """The records of one generation up to ``cut``."""
    for record in own:
        if cut is not None and record.step >= cut.step:
            return
        crosses = cut is not None and record.step_end > cut.step
        yield replace(record, step_end=cut.step, cursor_end=cut.cursor(record)) if cut and crosses else record


def _covered(records: Iterable[LedgerRange]) -> int:
    """The number of steps that the records of one generation (or of a lineage) cover."""
    covered, end = 0, 0
    for record in sorted(records, key=lambda r: r.step):
        covered += max(0, record.step_end - max(record.step, end))
        end = max(end, record.step_end)
    return covered


def _first_gap(lineage: list[LedgerRange], sizes: Mapping[int, int], ends: bool) -> str:
    step, epoch, cursor = 0, 0, 0
    batches: dict[tuple[Generation, int], int] = {}
    for previous, record, following in zip([None, *lineage], lineage, [*lineage[1:], None], strict=False):
        is_first = previous is None or previous.generation != record.generation
        may_rehearse = is_first and following is not None and _takes_fewer(record, following)
        if cursor == sizes.get(epoch) and record.epoch == epoch + 1:
            epoch, cursor = epoch + 1, 0
        if (record.step, record.epoch, record.cursor) != (step, epoch, cursor):
            return (
                f"generation {record.generation} continues at step {record.step}, epoch {record.epoch}, sample "
                f"{record.cursor}, but step {step}, epoch {epoch}, sample {cursor} was next"
            )
        if problem := _uneven(record, sizes.get(epoch, 0), {} if may_rehearse else batches):
            return problem
        step, cursor = record.step_end, record.cursor_end
    wanted = (len(sizes) - 1, sizes.get(len(sizes) - 1, 0)) if sizes else (0, 0)
    if ends and (epoch, cursor) != wanted:
        return f"it ends at epoch {epoch}, sample {cursor}; epoch {wanted[0]} ends at sample {wanted[1]}"
    return ""


def _takes_fewer(record: LedgerRange, following: LedgerRange) -> bool:
    """Whether it is a single step, with fewer samples than those that follow in its generation and epoch."""
    is_one = record.step_end - record.step == 1
    goes_on = (record.generation, record.epoch) == (following.generation, following.epoch)
    samples, steps = record.cursor_end - record.cursor, following.step_end - following.step
    return is_one and goes_on and following.cursor_end - following.cursor > samples * steps


def _uneven(record: LedgerRange, size: int, batches: dict[tuple[Generation, int], int]) -> str:
    """A record whose samples do not divide among its steps as those of its generation and epoch do (``batches``).

    An epoch's last step may be smaller than the others.
    """
    steps, samples = record.step_end - record.step, record.cursor_end - record.cursor
    if steps < 1 or samples < steps:
        return f"{where(record)}: {samples} samples do not fill {steps} steps"
    if record.cursor_end > size:
        return f"{where(record)}: sample {record.cursor_end} is beyond the epoch's {size}"
    batch = batches.setdefault((record.generation, record.epoch), -(-samples // steps))
    last = samples - (steps - 1) * batch
    if last == batch or (record.cursor_end == size and 0 < last < batch):
        return ""
    return f"{where(record)}: {samples} samples in {steps} steps are uneven, {batch} per step"


def where(record: LedgerRange) -> str:
    """Name a record."""
    steps = f"steps {record.step} to {record.step_end - 1}"
    return f"generation {record.generation}, {steps}, epoch {record.epoch}"


def proof(ledger: Ledger, epochs: int | None = None) -> LedgerProof:
    """Check that the lineage covers ``epochs`` epochs of the run that the identity describes, each sample once.

    Without ``epochs``, as far as the trainer got: to the step at which it finished, or to the last recorded one.
    """
    words, changes, rounds = ledger.identity, ledger.accepted, ledger.rounds()
    lineage, ends = ledger.lineage() if rounds is None else rounds.epochs(), epochs is not None
    problem = "" if words else "no group has reported what it trains on"
    if epochs is None:
        epochs = lineage[-1].epoch + 1 if lineage else 0
        last_step, finished = lineage[-1].step_end if lineage else 0, ledger.finished_step
        if not problem and finished not in (None, last_step):
            problem = f"it finished at step {finished}, and its records end at step {last_step}"
    for change in changes:
        if not problem and change.what in ORDERED_BY and (epoch := _inside(lineage, change.step)) is not None:
            problem = f"{change}, in the middle of epoch {epoch}: samples may have been used twice, or not at all"
    sizes = dict.fromkeys(range(epochs), Samples.of(words).length or 0)
    in_batches = all(change.what != PER_NODE for change in changes)  # an epoch's rounds end with a whole one
    for last in (list(its)[-1] for _, its in groupby(lineage, key=lambda record: record.epoch)):
        samples = Samples.of(before(words, changes, last.step_end - 1))
        if rounds is None and last.epoch in sizes:
            sizes[last.epoch] = samples.size(last.cursor_end, _batch(last))
        elif rounds is not None and last.epoch in sizes:
            end = rounds.end(last.epoch)
            sizes[last.epoch] = samples.size(end - (end % samples.multiple if in_batches else 0), samples.multiple)
    for record in ledger.lineage():
        asked = Samples.of(before(words, changes, record.step)).multiple
        problem = problem or _other_batch(record, asked, sizes.get(record.epoch, 0))
    return ledger.exactly_once(sizes, rounds, problem, ends=ends)


def _inside(lineage: Sequence[LedgerRange], step: int) -> int | None:
    """The epoch that is under way when ``step`` comes next; None: it begins an epoch, or is not in the lineage."""
    return next(
        (record.epoch for record in lineage if record.step <= step < record.step_end and _cuts(record, step)), None
    )


def _cuts(record: LedgerRange, step: int) -> bool:
    return step > record.step or record.cursor > 0


def _batch(record: LedgerRange) -> int:
    return -(-(record.cursor_end - record.cursor) // max(1, record.step_end - record.step))


def _other_batch(record: LedgerRange, asked: int, size: int) -> str:
    """A step's samples are a multiple of what the script ``asked`` for; an epoch's last one may have fewer."""
    steps, covered = record.step_end - record.step, record.cursor_end - record.cursor
    full = -(-_batch(record) // asked) * asked
    if covered == steps * full or (record.cursor_end == size and (steps - 1) * full < covered < steps * full):
        return ""
    return f"{where(record)}: {covered} samples, and the script asked for a multiple of {asked} per step"


@dataclass(frozen=True, slots=True)
class _Known:
    """A range, and whether each of its steps is known to take the same number of samples.

    A report of several steps that ends an epoch may hide a smaller last step; one that others continue from cannot.
    """

    range: LedgerRange
    even: bool

    @classmethod
    def of(cls, report: LedgerRange) -> _Known:
        """A reported range."""
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
    """One generation's steps in one epoch, as disjoint ranges, whatever was reported and in what order.

    Reports overlap: a leader repeats its last ranges when its group forms, and one that resumed from a checkpoint
    reports the past as that checkpoint knew it, cut elsewhere. Known steps stay as they are, and a report adds only new
    ones. Each range's ends are reported points (step, cursor): where a report's end falls inside a range, the range is
    split there, and neighbours of one even batch are joined again. A run that continues therefore needs one range, and
    a false report leaves a trace: a point off the line, which makes the batches on its two sides differ, or another
    cursor at a step whose cursor is known. ``disputed``: the first report that cannot be true.
    """

    disputed: LedgerRange | None = None
    _known: list[_Known] = field(default_factory=list)

    @property
    def ranges(self) -> list[LedgerRange]:
        """The known ranges, in the order of steps."""
        return [known.range for known in self._known]

    def add(self, report: LedgerRange) -> None:
        """Add the steps of ``report`` that are new; it costs as much as the ranges that it touches."""
        low = bisect_left(self._known, report.step, key=lambda known: known.range.step_end)
        high = bisect_right(self._known, report.step_end, key=lambda known: known.range.step)
        low, high = max(0, low - 1), high + 1  # a split may leave parts that adjoin the next range
        known = [part for touched in self._known[low:high] for part in self._split(touched, report)]
        new = list(_new_parts(report, [part.range for part in known]))
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


def _new_parts(report: LedgerRange, known: Iterable[LedgerRange]) -> Iterator[LedgerRange]:
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
            both = replace(out[-1].range, step_end=part.range.step_end, cursor_end=part.range.cursor_end)
            out[-1] = _Known(both, part.even)
        else:
            out.append(part)
    return out


def _goes_on(first: LedgerRange, second: LedgerRange) -> bool:
    """Whether all steps of both take the same number of samples, one range after the other."""
    if (first.step_end, first.cursor_end) != (second.step, second.cursor):
        return False
    batch, rest = divmod(first.cursor_end - first.cursor, first.step_end - first.step)
    return rest == 0 and second.cursor_end - second.cursor == batch * (second.step_end - second.step)
