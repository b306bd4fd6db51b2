"""An agent that has lost its coordinator follows its own pool's connection file, and no other."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from pilot.agent import coordinator_client
from pilot.agent.coordinator_client import Whereabouts
from pilot.protocol import connection
from pilot.protocol.connection import Connection
from tests.integration.live_pool import until

OURS = Connection("tcp://127.0.0.1:1", "0" * 64, "user", "enrolment", "pool-1", "0")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    connection.write(tmp_path / "connection.json", OURS)
    return tmp_path / "connection.json"


def test_it_follows_its_pool_to_another_port(file: Path) -> None:
    where, moved = Whereabouts(file), msgspec.structs.replace(OURS, endpoint="tcp://127.0.0.1:2")
    connection.write(file, moved)
    until(lambda: where.update() == "" and where.now == moved)


@pytest.mark.parametrize("change", [{"coordinator": "pool-2"}, {"certificate": "1" * 64}])
def test_a_file_of_another_pool_means_that_ours_is_over(file: Path, change: dict[str, str]) -> None:
    where = Whereabouts(file)
    connection.write(file, msgspec.structs.replace(OURS, endpoint="tcp://127.0.0.1:2", **change))
    assert "now belongs to pool" in until(where.update)
    assert where.now == OURS


def test_a_file_that_stays_away_ends_the_pool_and_an_unreadable_one_does_not(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = Whereabouts(file)
    file.unlink()
    until(lambda: where.update() or where._missing_since_s)
    assert where.update() == "", "it may be out of sight for a moment"
    file.write_text("damage")
    until(lambda: where.update() or where._missing_since_s is None)
    assert where.update() == ""
    file.unlink()
    monkeypatch.setattr(coordinator_client, "GONE_S", 0.1)
    assert "was removed" in until(where.update)


def _text(text: str) -> Callable[[Path], object]:
    return lambda file: file.write_text(text)


def _readable(file: Path) -> None:
    connection.write(file, msgspec.structs.replace(OURS, endpoint="tcp://127.0.0.1:3"))
    file.chmod(0o644)


def _sent_to(endpoint: str) -> Callable[[Path], object]:
    return lambda file: connection.write(file, msgspec.structs.replace(OURS, endpoint=endpoint))


SWAPS: dict[str, Callable[[Path], object]] = {
    "nothing in it": _text(""),
    "garbage": _text("\x00\x1b[2J" * 1000),
    "deep": _text("[" * 100_000),
    "half": _text('{"endpoint": "tcp://127.0.0.1:2", "cert'),
    "folder": Path.mkdir,
    "fifo": os.mkfifo,
    "link to a device": lambda file: file.symlink_to("/dev/zero"),
    "link to itself": lambda file: file.symlink_to(file),
    "readable by others": _readable,
    "no host": _sent_to("tcp://a..b:1"),
    "long host": _sent_to(f"tcp://{'a' * 64}:1"),
    "no address": _sent_to("tcp://[...]:1"),
    "no port": _sent_to("tcp://127.0.0.1:66666"),
}
"""What the file was swapped for, while the agent was looking for its coordinator: all of it may pass."""


@pytest.mark.parametrize("swap", SWAPS.values(), ids=SWAPS)
def test_what_is_no_connection_file_changes_nothing_and_hinders_no_later_one(
    file: Path, swap: Callable[[Path], object]
) -> None:
    where = Whereabouts(file)
    file.unlink()
    swap(file)
    for _ in range(2):
        assert where.update() == ""
        assert where._reader is not None
        where._reader.join(10.0)
        assert not where._reader.is_alive()
    assert (where.update(), where.now, where._missing_since_s) == ("", OURS, None)
    where._reader.join(10.0)
    file.rmdir() if file.is_dir() else file.unlink()
    moved = msgspec.structs.replace(OURS, endpoint="tcp://127.0.0.1:2")
    connection.write(file, moved)
    until(lambda: where.update() == "" and where.now == moved)
