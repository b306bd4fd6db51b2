"""Every row, every way; every day the core rows, the refused ones, session scripts, and a part of the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.equivalence.loops import SessionScript
from tests.equivalence.rows import assert_refused
from tests.equivalence.table import ROWS
from tests.equivalence.ways import WAYS, alone, assert_as_plain, assert_as_undisturbed, on_threads
from tests.everyday import one_in, parts


def named(*kinds: str) -> list[str]:
    return [n for n, row in ROWS.items() if row.kind in kinds and not row.real and not isinstance(row, SessionScript)]


def trained() -> list[Any]:
    names = named("equal", "different")
    return one_in(4, names, [name for name in names if ROWS[name].core])


@pytest.mark.parametrize("name", trained())
def test_trains_as_its_plain_loop(name: str) -> None:
    """No rehearsal finds a difference, or a rank would end."""
    row = ROWS[name]
    assert_as_plain(row, alone(row))
    for way in WAYS:
        run = on_threads(row, way)
        assert_as_plain(row, run)
        if way != "one rank":
            assert_as_undisturbed(row, run)


@pytest.mark.parametrize(
    ("row", "part"),
    [
        pytest.param(row, *part.values, marks=part.marks, id=f"{row.name}-{part.values[0]}")
        for row in ROWS.values()
        if isinstance(row, SessionScript)
        for part in parts(row.parts)
    ],
)
def test_trains_as_with_a_plain_session(row: SessionScript, part: int) -> None:
    row.assert_equal(part)


@pytest.mark.parametrize("name", named("refused"))
def test_is_refused_alone_as_on_many(name: str) -> None:
    ROWS[name].prepare()
    assert_refused(ROWS[name].script, ROWS[name].refused)
