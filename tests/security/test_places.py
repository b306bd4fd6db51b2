"""A pilot, or anyone with its token, cannot take the places of others: its connections are few, and a user's commands
and the coordinator's own files find descriptors.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pilot import __version__
from pilot.protocol import connection, wire
from pilot.protocol.connection import Connection
from pilot.protocol.pool_client import request
from pilot.rundir import heartbeat
from tests.integration.live_pool import Peer, Pool, until
from tests.streams import Stream

FILES = 256
"""The coordinator's limit of open files."""

TRIES = 400
FEW = 16
"""Connections that one job's token may have at a time, at most."""

ANSWER_S = 60.0
JOB = "4711"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool that may open few files, and knows the token of a job that it submitted."""
    made = Pool(tmp_path_factory.mktemp("places"))
    job = made.run_dir / "pilots" / "one.connection.json"
    made.run_dir.mkdir(mode=0o700)
    job.parent.mkdir(mode=0o700)
    connection.write(job, Connection("tcp://127.0.0.1:1", "0" * 64, "", "the-jobs-token", "pool", "0", JOB))
    made.command = ["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", *made.command]
    try:
        made.up()
        yield made
    finally:
        made.kill()


@pytest.fixture
def job(live: Pool) -> Path:
    """The connection file of its job."""
    return live.run_dir / "pilots" / "one.connection.json"


def files(live: Pool) -> int:
    assert live.process is not None
    return psutil.Process(live.process.pid).num_fds()


def shown(file: Path) -> Stream:
    """A connection on which the file's token was shown, and nothing else."""
    where = connection.load(file)
    stream = Stream(where.address)
    stream.send(wire.encode(wire.Credentials(wire.PROTOCOL, __version__, where.enrolment)))
    return stream


def serves(live: Pool) -> None:
    """A user's commands are answered."""
    assert request(live.file, "status", {}, ANSWER_S).error == ""
    assert "Traceback" not in live.log()
    assert "Too many open files" not in live.log()


def test_connections_that_show_a_jobs_token_and_say_no_more_are_few(live: Pool, job: Path) -> None:
    before = files(live)
    held = []
    for _ in range(TRIES):
        with suppress(OSError):
            held.append(shown(job))
    until(lambda: files(live) - before < FEW, ANSWER_S)
    serves(live)
    lock = live.run_dir / "coordinator.lock"
    beat = heartbeat.read(lock)
    until(lambda: heartbeat.read(lock) != beat, 3 * heartbeat.BEAT_S)
    for stream in held:
        stream.close()


def test_a_name_that_comes_back_leaves_no_connection_behind(live: Pool, job: Path) -> None:
    first = Peer(job, "again", job=JOB).welcomed()
    before = files(live)
    for _ in range(FEW):
        last = Peer(job, "again", job=JOB).welcomed()
    assert first.socket.closed(ANSWER_S)
    until(lambda: files(live) - before < 3, ANSWER_S)
    serves(live)
    last.die()


def test_a_job_that_claims_to_live_again_and_again_is_slowed_down_and_leaves_no_connection_behind(
    live: Pool, job: Path
) -> None:
    before, seq = files(live), len(live.log())
    came = 0
    for life in range(100):
        peer = Peer(job, f"life{life}", job=JOB, restart=life + 1)
        with suppress(ConnectionError):
            came += isinstance(wire.decode_at_agent(peer.socket.recv()), wire.Welcome)
    assert 0 < came <= 2 * FEW
    until(lambda: files(live) - before < 3, ANSWER_S)
    assert len(live.log()) - seq < 100 * 100
    serves(live)


def test_pilots_that_registered_leave_places_for_a_users_commands(live: Pool) -> None:
    held = [Peer(live.file, f"own{number}") for number in range(FILES // 2 + 20)]
    until(lambda: len(live.nodes()) > FILES // 2 - 10, ANSWER_S)
    assert held[-1].socket.closed(ANSWER_S), "the log may say nothing: the tests before have used up its lines"
    serves(live)
    assert FILES // 2 - 10 < len(live.nodes()) <= FILES // 2
    for peer in held:
        peer.die()
    until(lambda: live.nodes() == [])
    Peer(live.file, "later").welcomed().die()


def test_sigterm_ends_it_while_a_jobs_token_is_shown_again_and_again(live: Pool, job: Path) -> None:
    held = [shown(job) for _ in range(TRIES)]
    assert live.process is not None
    live.process.send_signal(signal.SIGTERM)
    assert live.process.wait(ANSWER_S) == 0
    for stream in held:
        stream.close()
