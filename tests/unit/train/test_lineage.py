"""The ledger of one lineage."""

from __future__ import annotations

from pilot.train.lineage import Lineage


def test_steps_that_follow_each_other_become_one_row() -> None:
    ledger = Lineage()
    for step in range(3):
        ledger.add(1, 0, step, 10 * step, 10 * step + 10)
    ledger.add(1, 1, 3, 0, 10)
    ledger.add(2, 1, 4, 10, 30)
    assert ledger.rows == [(1, 0, 0, 3, 0, 30), (1, 1, 3, 4, 0, 10), (2, 1, 4, 5, 10, 30)]
    assert ledger.newest(2) == ledger.rows[1:]


def test_a_ledger_goes_on_where_its_rows_end() -> None:
    ledger = Lineage([[1, 0, 0, 3, 0, 30]])
    ledger.add(1, 0, 3, 30, 40)
    assert ledger.rows == [(1, 0, 0, 4, 0, 40)]
