"""The connection file is private and complete, and errors about it are one clear line."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest

from pilot.core.errors import PilotError, UserError
from pilot.protocol import connection
from pilot.protocol.connection import Connection
from pilot.protocol.pool_client import PoolClient

SAMPLE = Connection("tcp://login1:4411", "c" * 64, "secret", "enrolment", "pool-1", "0.1.0")


def test_round_trip_is_private_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "connection.json"
    connection.write(path, SAMPLE)
    assert connection.load(path) == SAMPLE
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "connection.json"
    connection.write(path, SAMPLE)
    path.chmod(0o640)
    with pytest.raises(UserError, match="chmod 600"):
        connection.load(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "connection.json"
    connection.write(path, SAMPLE)
    os.chown(path, 12345, -1)
    with pytest.raises(UserError, match="belongs to user 12345"):
        connection.load(path)


ENDPOINTS = ["", "login1:4411", "tcp://login1", "tcp://:1", "tcp://h:99999999", "tcp://h:70000", "ipc://h:1", "tcp://["]
ODD: dict[str, list[str]] = {
    "endpoint": [*ENDPOINTS, "tcp://a..b:1", "tcp://h:1\n"], "certificate": ["c" * 63], "token": ["x" * 201, "é"],
    "enrolment": ["a b"], "coordinator": ["", "../x"], "version": [""], "job": ["1\x1b"],
}  # fmt: skip
FIELDS = [{name: value} for name, values in ODD.items() for value in values]
CONTENTS = [msgspec.json.encode({**msgspec.to_builtins(SAMPLE), **field}) for field in [*FIELDS, {"more": 1}]]


@pytest.mark.parametrize("content", [b"", b"{", b'{"endpoint": 3}', b"\xff\xfe", *CONTENTS])
def test_a_damaged_file_is_one_clear_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "connection.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(UserError, match="damaged") as caught:
        connection.load(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="pilot up"):
        connection.load(tmp_path / "connection.json")


def test_the_address_of_an_endpoint() -> None:
    assert SAMPLE.address == ("login1", 4411)
    assert msgspec.structs.replace(SAMPLE, endpoint="tcp://[::1]:5").address == ("::1", 5)


def test_a_coordinator_that_does_not_listen_is_told_without_the_number_of_the_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = tmp_path / "connection.json"
    connection.write(path, msgspec.structs.replace(SAMPLE, endpoint=f"tcp://127.0.0.1:{port}"))
    with pytest.raises(PilotError, match=r"^no answer: Connection refused from the coordinator at"):
        PoolClient(path, 5.0).status()
