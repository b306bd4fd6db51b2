"""The ledger compared with what is known about the run: its dataset's length, its batches, accepted changes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from pilot.core.events import LedgerRange
from pilot.core.ledger import Ledger, Verdict
from pilot.core.run_identity import ORDERED_BY, Samples, before


def proof(ledger: Ledger, epochs: int) -> Verdict:
    """Whether the lineage covers ``epochs`` epochs of the run that the identity describes, each sample once."""
    words, changes = ledger.identity, ledger.accepted
    if not words:
        return Verdict(False, "no group has reported what it trains on")
    lineage = ledger.lineage()
    for change in changes:
        if change.what in ORDERED_BY and (epoch := _inside(lineage, change.step)) is not None:
            return Verdict(
                False, f"{change}, in the middle of epoch {epoch}: its samples may have been used twice, or not at all"
            )
    sizes = dict.fromkeys(range(epochs), Samples.of(words).length or 0)
    for epoch, grouped in groupby(lineage, key=lambda record: record.epoch):
        records = list(grouped)
        last = records[-1]
        samples = Samples.of(before(words, changes, last.step))
        if epoch in sizes:
            sizes[epoch] = samples.size(last.cursor_end, _batch(last))
        for record in records:
            asked = Samples.of(before(words, changes, record.step)).multiple
            if problem := _other_batch(record, asked, sizes.get(epoch, 0)):
                return Verdict(False, problem)
    return ledger.exactly_once(sizes)


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
    return (
        f"generation {record.generation}, steps {record.step} to {record.step_end - 1}: {covered} samples, and the"
        f" script asked for a multiple of {asked} per step"
    )
