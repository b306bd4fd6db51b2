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
    """The records of one trainer. ``voided_steps`` counts recorded steps that a later generation did again."""

    _records: dict[Generation, dict[int, LedgerRange]] = field(default_factory=dict)

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
        cut: LedgerRange | None = None
        for generation in sorted(self._records, reverse=True):
            own = sorted(self._records[generation].values(), key=lambda r: r.step)
            kept = list(_before(own, cut)) + kept
            if cut is None or own[0].step < cut.step:
                cut = own[0]
        return kept

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


def _before(own: list[LedgerRange], cut: LedgerRange | None) -> Iterator[LedgerRange]:
    """The records of one generation up to ``cut``, without what repeats an earlier one of them."""
    end = own[0].step
    for record in own:
        if cut is not None and record.step >= cut.step:
            return
        if record.step_end <= end and record.step < end:
            continue
        end = record.step_end
        if cut is not None and end > cut.step:
            cursor = cut.cursor if cut.epoch == record.epoch else record.cursor_end
            yield replace(record, step_end=cut.step, cursor_end=cursor)
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
