"""Every row, every way."""

from __future__ import annotations

import pytest

from tests.equivalence.table import ROWS
from tests.equivalence.ways import WAYS, alone, assert_as_plain, assert_as_undisturbed, assert_refused, on_threads


def named(*kinds: str) -> list[str]:
    return [name for name, row in ROWS.items() if row.kind in kinds and not row.real]


@pytest.mark.parametrize("name", named("equal", "different"))
def test_trains_as_its_plain_loop(name: str) -> None:
    row = ROWS[name]
    by_itself = alone(row)
    assert_as_plain(row, by_itself)
    for way in WAYS:
        run = on_threads(row, way)
        assert_as_plain(row, run)
        if way != "one rank":
            assert_as_undisturbed(row, run)


@pytest.mark.parametrize("name", named("refused"))
def test_is_refused_alone_as_on_many(name: str) -> None:
    assert_refused(ROWS[name])
