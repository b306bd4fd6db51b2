"""Connection files: read, and then used as by the CLI."""

from __future__ import annotations

import random
from pathlib import Path

from pilot.core.errors import PilotError
from pilot.protocol import connection
from pilot.protocol.pool_client import request
from tests.security.fuzz.mutate import changed_json
from tests.security.fuzz.target import ACCEPTED, Target, check_line


def prepare(folder: Path) -> tuple[Path, bytes]:
    """A valid connection file of a coordinator that is not running."""
    path = folder / "connection.json"
    where = connection.Connection("tcp://127.0.0.1:9", "a" * 64, "t" * 43, "e" * 43, "local-1a2b3c", "0.1.0", "17")
    connection.write(path, where)
    return path, path.read_bytes()


def attempt(place: tuple[Path, bytes], rng: random.Random) -> str:
    """A file that is accepted leads to no answer, reported in one line."""
    path, right = place
    path.write_bytes(changed_json(rng, right))
    connection.load(path)
    try:
        request(path, "status", {}, timeout_s=0.05)
    except PilotError as error:
        check_line(str(error))
    return ACCEPTED


TARGET = Target("connection files", 300, 60, attempt, prepare=prepare)
