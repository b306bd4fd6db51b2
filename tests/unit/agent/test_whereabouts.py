"""An agent that has lost its coordinator follows its own pool's connection file, and no other."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pilot.agent import whereabouts
from pilot.agent.whereabouts import Whereabouts
from pilot.io import connection
from pilot.io.connection import Connection
from tests.integration.live_pool import until

OURS = Connection("tcp://127.0.0.1:1", "0" * 64, "user", "enrolment", "pool-1", "0")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    connection.write(tmp_path / "connection.json", OURS)
    return tmp_path / "connection.json"


def test_it_follows_its_pool_to_another_port(file: Path) -> None:
    where, moved = Whereabouts(file), msgspec.structs.replace(OURS, endpoint="tcp://127.0.0.1:2")
    connection.write(file, moved)
    until(lambda: where.look() == "" and where.now == moved)


@pytest.mark.parametrize("change", [{"coordinator": "pool-2"}, {"certificate": "1" * 64}])
def test_a_file_of_another_pool_says_that_ours_is_over(file: Path, change: dict[str, str]) -> None:
    where = Whereabouts(file)
    connection.write(file, msgspec.structs.replace(OURS, endpoint="tcp://127.0.0.1:2", **change))
    assert "now belongs to pool" in until(where.look)
    assert where.now == OURS


def test_a_file_that_stays_away_says_so_and_one_that_cannot_be_read_says_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = Whereabouts(file)
    file.unlink()
    until(lambda: where.look() or where._missing_since_s)
    assert where.look() == "", "it may be out of sight for a moment"
    file.write_text("damage")
    until(lambda: where.look() or where._missing_since_s is None)
    assert where.look() == ""
    file.unlink()
    monkeypatch.setattr(whereabouts, "GONE_S", 0.1)
    assert "was removed" in until(where.look)
