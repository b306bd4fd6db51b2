"""The ledger of one lineage."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import asdict

from pilot.checkpoint.tree import decode, encode
from pilot.train.state.progress import Lineage, LineageRow, Position


def test_steps_that_follow_each_other_become_one_row() -> None:
    ledger = Lineage()
    for step in range(3):
        ledger.add(1, 0, step, 10 * step, 10 * step + 10)
    ledger.add(1, 1, 3, 0, 10)
    ledger.add(2, 1, 4, 10, 30)
    assert ledger.rows == [(1, 0, 0, 3, 0, 30), (1, 1, 3, 4, 0, 10), (2, 1, 4, 5, 10, 30)]
    assert ledger.newest(2) == ledger.rows[1:]


def test_a_step_that_takes_more_samples_than_those_before_begins_a_row() -> None:
    ledger = Lineage()
    for step, (cursor, end) in enumerate([(0, 8), (8, 24), (24, 40), (40, 50)]):
        ledger.add(1, 0, step, cursor, end)
    assert ledger.rows == [(1, 0, 0, 1, 0, 8), (1, 0, 1, 4, 8, 50)]


def test_a_ledger_goes_on_where_its_rows_end() -> None:
    ledger = Lineage([[1, 0, 0, 3, 0, 30]])
    ledger.add(1, 0, 3, 30, 40)
    assert ledger.rows == [(1, 0, 0, 4, 0, 40)]


def test_rows_of_rounds_stay_apart() -> None:
    ledger = Lineage()
    rows = [LineageRow(1, 0, 0, 5, 0, 20), LineageRow(1, 0, 0, 5, 30, 40), LineageRow(1, 0, 5, 10, 40, 80)]
    ledger.extend(rows[:2])
    ledger.extend(rows[2:])
    assert ledger.rows == rows


def test_ranges_that_were_put_back_survive_in_a_state() -> None:
    position = Position(step=10, round=2, back=[[20, 30], [40, 44]])
    tree = json.loads(json.dumps(encode({"position": asdict(position)}).tree))
    assert Position(**decode(tree, lambda *_: None)["position"]) == position


def test_ten_thousand_epochs_take_half_a_megabyte() -> None:
    """It is copied for each checkpoint: as Python objects they took 2.5 MB, and fragmented the heap."""
    tracemalloc.start()
    ledger = Lineage()
    for epoch in range(10_000):
        ledger.add(1, epoch, 20 * epoch + 1000, 0, 1797)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 600_000
    assert ledger.table().shape == (10_000, 6)
    assert ledger.table()[-1].tolist() == [1, 9999, 200_980, 200_981, 0, 1797]
