"""Rows on ranks that are real processes: each way gives the same as on threads."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.equivalence import recipe, ways
from tests.equivalence.loops import SessionScript
from tests.equivalence.real import on_processes
from tests.equivalence.table import ROWS
from tests.equivalence.topics.nodes import NodeRow
from tests.equivalence.ways import WAYS, assert_as_plain, assert_as_undisturbed
from tests.equivalence.worker import SLOW_BATCH, SLOW_EPOCHS
from tests.everyday import one_in

NAMES = [name for name, row in ROWS.items() if row.kind != "refused" and not isinstance(row, SessionScript | NodeRow)]
CORE = [name for name in NAMES if ROWS[name].core]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", one_in(len(NAMES), NAMES, CORE))
def test_trains_as_its_plain_loop(name: str, way: str, tmp_path: Path) -> None:
    row = ROWS[name]
    if row.needs and not shutil.which(row.needs):
        pytest.skip(f"{row.needs} is not installed")
    run = on_processes(row, way, tmp_path)
    assert_as_plain(row, run)
    if way != "one rank":
        assert_as_undisturbed(row, run)


def test_trains_as_its_plain_loop_while_a_slow_rank_gets_a_smaller_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (recipe, ways):
        monkeypatch.setattr(module, "EPOCHS", SLOW_EPOCHS)
    row = replace(ROWS["micro-batches of 1"], batch=SLOW_BATCH)
    run = on_processes(row, "two ranks", tmp_path, "slow")
    assert set(run.bounds.values()) == {(), (0, 7, 9)}
    assert_as_plain(row, run)
    assert_as_undisturbed(row, run)
