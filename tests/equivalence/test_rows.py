"""Every row, every way."""

from __future__ import annotations

import pytest

from tests.equivalence.rows import Elsewhere
from tests.equivalence.table import ROWS
from tests.equivalence.ways import WAYS, alone, assert_as_plain, assert_as_undisturbed, assert_refused, on_threads


def named(*kinds: str) -> list[str]:
    return [n for n, row in ROWS.items() if row.kind in kinds and not row.real and not isinstance(row, Elsewhere)]


@pytest.mark.parametrize("name", named("equal", "different"))
def test_trains_as_its_plain_loop(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No rehearsal finds a difference."""
    row = ROWS[name]
    by_itself = alone(row)
    assert_as_plain(row, by_itself)
    for way in WAYS:
        run = on_threads(row, way)
        assert_as_plain(row, run)
        if way != "one rank":
            assert_as_undisturbed(row, run)
    assert "computes another gradient" not in capsys.readouterr().err


@pytest.mark.parametrize("name", named("refused"))
def test_is_refused_alone_as_on_many(name: str) -> None:
    assert_refused(ROWS[name])


def test_what_is_tested_elsewhere_is_there() -> None:
    assert [row.name for row in ROWS.values() if isinstance(row, Elsewhere) and not row.exists()] == []
