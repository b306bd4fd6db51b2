"""The ledger: which samples a trainer's parameters were trained on, and the proof that each was used once per epoch.

Records are ranges: samples [cursor, cursor_end) of an epoch went into steps [step, step_end) of a generation. A
generation's first record voids what earlier generations recorded at or beyond its step: those steps were lost or
redone. What is left is the *lineage*. Records may arrive late, twice, split differently and in any order: they are made
disjoint and merged when they are recorded (:mod:`pilot.core.step_ranges`), so a trainer's ledger grows with its
generations and epochs and not with its steps.

Within one generation all steps of an epoch use the same number of samples, except the epoch's last one, and the
generation's first one, in which nodes may rehearse. So where a record is voided in part, the cursor at the cut follows
from that rule, and it is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pilot.core.events import LedgerRange
from pilot.core.ids import Generation
from pilot.core.run_identity import AcceptedChange
from pilot.core.step_ranges import StepRanges


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the ledger proves about a trainer's samples."""

    proved: bool  #: whether every sample was used exactly once per epoch
    text: str  #: the proof or the gap in words


@dataclass(slots=True)
class Ledger:
    """The records of one trainer."""

    identity: Mapping[str, str] = field(default_factory=dict)
    """What the run trains on, in words by name, as a leader last reported it."""
    accepted: tuple[AcceptedChange, ...] = ()
    """What was changed of it at resumes, in order."""
    _epochs: dict[Generation, dict[int, StepRanges]] = field(default_factory=dict)
    _began: dict[Generation, int] = field(default_factory=dict)

    def began(self, generation: Generation, step: int) -> None:
        """Record that ``generation`` trains from ``step`` on: that voids all earlier records from there on, even if its
        own first record is missing.
        """
        self._began[generation] = step

    def add(self, records: Iterable[LedgerRange]) -> None:
        """Add what a leader reported."""
        for record in records:
            self._epochs.setdefault(record.generation, {}).setdefault(record.epoch, StepRanges()).add(record)

    def lineage(self) -> list[LedgerRange]:
        """The records behind the current parameters, in order of steps; a record that was voided in part ends there."""
        kept: list[list[LedgerRange]] = []
        for generation, cut in self._cuts():
            kept.append(list(_before(self._own(generation), cut)))
        return [record for own in reversed(kept) for record in own]

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
                    return f"{_where(record)}: reported with other samples as well"
        return ""

    def exactly_once(self, sizes: Mapping[int, int]) -> Verdict:
        """Check that the lineage covers epochs 0, 1, … of ``sizes`` samples each, without gaps and once."""
        lineage = self.lineage()
        if problem := self._disputed() or _first_gap(lineage, sizes):
            return Verdict(False, problem)
        total = sum(sizes.values())
        generations = len({record.generation for record in lineage})
        return Verdict(
            True,
            f"{len(lineage)} records of {generations} generations cover {len(sizes)} epochs, {total} samples, in "
            f"{lineage[-1].step_end if lineage else 0} steps: contiguous, each sample once per epoch; "
            f"{self.voided_steps()} recorded steps were voided",
        )


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where a later generation begins, and its first record, if it has been reported."""

    step: int
    first: LedgerRange | None

    def cursor(self, record: LedgerRange) -> int:
        """Where ``record``, which extends beyond the cut, ends: known from the later generation's first record."""
        if self.first is None or self.first.epoch != record.epoch:
            return record.cursor_end
        return self.first.cursor


def _before(own: list[LedgerRange], cut: _Cut | None) -> Iterator[LedgerRange]:
    """The records of one generation up to ``cut``."""
    for record in own:
        if cut is not None and record.step >= cut.step:
            return
        crosses = cut is not None and record.step_end > cut.step
        yield replace(record, step_end=cut.step, cursor_end=cut.cursor(record)) if cut and crosses else record


def _covered(records: Iterable[LedgerRange]) -> int:
    """How many steps the records of one generation (or of a lineage) cover."""
    covered, end = 0, 0
    for record in sorted(records, key=lambda r: r.step):
        covered += max(0, record.step_end - max(record.step, end))
        end = max(end, record.step_end)
    return covered


def _first_gap(lineage: list[LedgerRange], sizes: Mapping[int, int]) -> str:
    step, epoch, cursor = 0, 0, 0
    batches: dict[tuple[Generation, int], int] = {}
    for before, record, following in zip([None, *lineage], lineage, [*lineage[1:], None], strict=False):
        is_first = before is None or before.generation != record.generation
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
    if (epoch, cursor) != wanted:
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
        return f"{_where(record)}: {samples} samples do not fill {steps} steps"
    if record.cursor_end > size:
        return f"{_where(record)}: sample {record.cursor_end} is beyond the epoch's {size}"
    batch = batches.setdefault((record.generation, record.epoch), -(-samples // steps))
    last = samples - (steps - 1) * batch
    if last == batch or (record.cursor_end == size and 0 < last < batch):
        return ""
    return f"{_where(record)}: {samples} samples in {steps} steps are uneven, {batch} per step"


def _where(record: LedgerRange) -> str:
    steps = f"steps {record.step} to {record.step_end - 1}"
    return f"generation {record.generation}, {steps}, epoch {record.epoch}"
