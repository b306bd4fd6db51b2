"""Every row, every way; every day the core rows, the refused ones, and a part of the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.equivalence.rows import Elsewhere, assert_refused
from tests.equivalence.table import ROWS
from tests.equivalence.ways import WAYS, alone, assert_as_plain, assert_as_undisturbed, on_threads
from tests.everyday import one_in


def named(*kinds: str) -> list[str]:
    return [n for n, row in ROWS.items() if row.kind in kinds and not row.real and not isinstance(row, Elsewhere)]


def trained() -> list[Any]:
    names = named("equal", "different")
    return one_in(4, names, [name for name in names if ROWS[name].core])


@pytest.mark.parametrize("name", trained())
def test_trains_as_its_plain_loop(name: str) -> None:
    """No rehearsal finds a difference, or a rank would end."""
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
    ROWS[name].prepare()
    assert_refused(ROWS[name].script, ROWS[name].refused)


def test_what_is_tested_elsewhere_is_there() -> None:
    assert [row.name for row in ROWS.values() if isinstance(row, Elsewhere) and not row.exists()] == []
