"""The ledger: which samples are behind a trainer's parameters, and the proof that each was used once per epoch.

Records are ranges: samples [cursor, cursor_end) of an epoch went into steps [step, step_end) of a generation. A
generation's first record voids what earlier generations recorded at or beyond its step: those steps were lost or
redone. What is left is the *lineage*. Records may arrive late or twice and in any order.

Within one generation all steps of an epoch use the same number of samples, except the epoch's last one. So where a
record is voided from its middle on, the cursor of the cut is known up to that rule, and it is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pilot.core.events import LedgerRange
from pilot.core.ids import Generation


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the ledger proves that every sample was used exactly once per epoch, and the proof or the gap in
    words."""

    proved: bool
    text: str


@dataclass(slots=True)
class Ledger:
    """The records of one trainer."""

    _records: dict[Generation, dict[int, LedgerRange]] = field(default_factory=dict)
    _began: dict[Generation, int] = field(default_factory=dict)

    def began(self, generation: Generation, step: int) -> None:
        """``generation`` trains from ``step`` on: it voids what is beyond, even if its first record is missing."""
        self._began[generation] = step

    def add(self, records: Iterable[LedgerRange]) -> None:
        """Take in what a leader reported. Of two records that begin at the same step the longer one holds."""
        for record in records:
            own = self._records.setdefault(record.generation, {})
            known = own.get(record.step)
            if known is None or known.step_end < record.step_end:
                own[record.step] = record

    def lineage(self) -> list[LedgerRange]:
        """What is behind the current parameters, in the order of steps; cut records end where they were voided."""
        kept: list[LedgerRange] = []
        cut: _Cut | None = None
        for generation in sorted(self._records.keys() | self._began.keys(), reverse=True):
            own = sorted(self._records.get(generation, {}).values(), key=lambda r: r.step)
            kept = list(_before(own, cut)) + kept
            begin = self._begin(generation, own)
            if cut is None or begin.step < cut.step:
                cut = begin
        return kept

    def _begin(self, generation: Generation, own: list[LedgerRange]) -> _Cut:
        first = own[0].step if own else None
        step = min(s for s in (first, self._began.get(generation)) if s is not None)
        return _Cut(step, own[0] if first == step else None)

    def voided_steps(self) -> int:
        """Recorded steps that a later generation did again."""
        recorded = sum(_covered(own.values()) for own in self._records.values())
        return recorded - _covered(self.lineage())

    def exactly_once(self, sizes: Mapping[int, int]) -> Verdict:
        """Check that the lineage covers epochs 0, 1, … of ``sizes`` samples each, gap-free and once."""
        lineage = self.lineage()
        if problem := _first_gap(lineage, sizes):
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
    """Where a later generation begins, and its first record where that is there."""

    step: int
    first: LedgerRange | None

    def cursor(self, record: LedgerRange) -> int:
        """Where ``record``, which goes on beyond the cut, ends: known where the later generation's first record is."""
        if self.first is None or self.first.epoch != record.epoch:
            return record.cursor_end
        return self.first.cursor


def _before(own: list[LedgerRange], cut: _Cut | None) -> Iterator[LedgerRange]:
    """The records of one generation up to ``cut``, without what repeats an earlier one of them."""
    end = -1
    for record in own:
        if cut is not None and record.step >= cut.step:
            return
        if record.step_end <= end:
            continue
        end = record.step_end
        if cut is not None and end > cut.step:
            yield replace(record, step_end=cut.step, cursor_end=cut.cursor(record))
            return
        yield record


def _covered(records: Iterable[LedgerRange]) -> int:
    """How many steps the records of one generation (or of a lineage) cover."""
    covered, end = 0, 0
    for record in sorted(records, key=lambda r: r.step):
        covered += max(0, record.step_end - max(record.step, end))
        end = max(end, record.step_end)
    return covered


def _first_gap(lineage: list[LedgerRange], sizes: Mapping[int, int]) -> str:
    step, epoch, cursor = 0, 0, 0
    for record in lineage:
        if cursor == sizes.get(epoch) and record.epoch == epoch + 1:
            epoch, cursor = epoch + 1, 0
        if (record.step, record.epoch, record.cursor) != (step, epoch, cursor):
            return (
                f"generation {record.generation} goes on at step {record.step}, epoch {record.epoch}, sample "
                f"{record.cursor}, but step {step}, epoch {epoch}, sample {cursor} was next"
            )
        if problem := _uneven(record, sizes.get(epoch, 0)):
            return problem
        step, cursor = record.step_end, record.cursor_end
    wanted = (len(sizes) - 1, sizes.get(len(sizes) - 1, 0)) if sizes else (0, 0)
    if (epoch, cursor) != wanted:
        return f"it ends at epoch {epoch}, sample {cursor}; epoch {wanted[0]} ends at sample {wanted[1]}"
    return ""


def _uneven(record: LedgerRange, size: int) -> str:
    """A record whose samples do not divide among its steps; an epoch's last step may be smaller than the others."""
    steps, samples = record.step_end - record.step, record.cursor_end - record.cursor
    where = f"generation {record.generation}, steps {record.step} to {record.step_end - 1}, epoch {record.epoch}"
    if steps < 1 or samples < steps:
        return f"{where}: {samples} samples do not fill {steps} steps"
    if record.cursor_end > size:
        return f"{where}: sample {record.cursor_end} is beyond the epoch's {size}"
    if record.cursor_end == size:
        batch = -(-samples // steps)
        return "" if (steps - 1) * batch < samples else f"{where}: {samples} samples in {steps} steps are uneven"
    return f"{where}: {samples} samples in {steps} steps are uneven" if samples % steps else ""
