"""Peers that may not join are refused and logged, and no input can bring the coordinator down."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilot import __version__
from pilot.core.errors import UserError
from pilot.protocol import wire
from pilot.protocol.connection import Certificate, load, write
from pilot.protocol.pool_client import request
from tests.integration.live_pool import DEADLINE_S, LAUNCH, Peer, Pool, pool, settings, until
from tests.streams import Stream

numbers = itertools.count()
"""Suffixes of pilot names: a pilot that has left does not come back under its own."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with pool(tmp_path_factory.mktemp("server")) as made:
        yield made


def joins(live: Pool, name: str) -> None:
    """The coordinator still accepts pilots."""
    Peer(live.file, f"{name}{next(numbers)}").welcomed().die()


def test_a_wrong_token_is_refused_and_logged(live: Pool) -> None:
    assert "wrong token" in Peer(live.file, "p", token="wrong").hears(wire.Refused).reason
    until(lambda: "wrong token" in live.log())  # written by a thread
    joins(live, "after-token")


@pytest.mark.parametrize("changes", [{"version": "0.0.0"}, {"protocol": 99}])
def test_another_version_is_refused_and_logged(live: Pool, changes: dict[str, object]) -> None:
    reason = Peer(live.file, "p", **changes).hears(wire.Refused).reason
    assert reason.startswith("version mismatch: pilot ")
    until(lambda: reason in live.log())


@pytest.mark.parametrize("name", ["", "../../etc", "a b", "x" * 200, "n\n"])
def test_a_name_that_is_no_name_is_refused(live: Pool, name: str) -> None:
    assert "not a name for a node" in Peer(live.file, name, proven=False).hears(wire.Refused).reason


def test_another_servers_certificate_is_not_taken(live: Pool, tmp_path: Path) -> None:
    where = load(live.file)
    write(tmp_path / "c.json", msgspec.structs.replace(where, certificate=Certificate.make().fingerprint))
    with pytest.raises(UserError, match="is not this pool's coordinator"):
        request(tmp_path / "c.json", "list", {}, DEADLINE_S)


def test_a_request_with_a_wrong_token_is_refused(live: Pool, tmp_path: Path) -> None:
    write(tmp_path / "c.json", msgspec.structs.replace(load(live.file), token="guessed"))
    with pytest.raises(UserError, match="wrong token"):
        request(tmp_path / "c.json", "list", {}, DEADLINE_S)


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\x93"],
        [b"not msgpack at all"],
        [b"\xc1" * 100],
        [wire.encode(wire.Heartbeat(0.0))[:-1]],
        [wire.encode(wire.Welcome("n", "c", 1, 1, 1, 1))],
        [wire.encode(wire.Heartbeat(0.0)), b"one more"],
        [wire.encode(wire.Request("list"))],
        [b"\x91" * 5000],
    ],
)
def test_what_is_no_message_is_refused(live: Pool, frames: list[bytes]) -> None:
    peer = Peer(live.file, f"malformed{next(numbers)}").welcomed()
    for frame in frames:
        peer.socket.send(frame)
    assert peer.hears(wire.Refused).reason
    peer.die()
    joins(live, "after-malformed")


def test_an_oversized_frame_closes_the_connection_of_its_sender_only(live: Pool) -> None:
    other = Peer(live.file, "other").welcomed()
    peer = Peer(live.file, "large").welcomed()
    until(lambda: peer.node in live.nodes())
    peer.socket.send(b"x" * (wire.MAX_FRAME_BYTES + 1))
    until(lambda: peer.node not in live.nodes())
    assert other.node in live.nodes()
    other.die()


def test_a_message_before_registering_ends_the_connection(live: Pool) -> None:
    where = load(live.file)
    stream = Stream(where.address)
    stream.send(wire.encode(wire.Credentials(wire.PROTOCOL, __version__, where.enrolment)))
    stream.send(wire.encode(wire.Progress("t", 1, 1, 0, 1)))
    assert wire.decode_at_agent(stream.recv()) == wire.Refused("it sent Progress before Hello")
    assert stream.closed()
    joins(live, "after-stranger")
    stream.close()


class Eavesdropper:
    """Passes one connection on to the coordinator, and keeps what the peer sent."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._address = address
        self.heard = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        near, _ = self._listener.accept()
        with near, socket.create_connection(self._address) as far:
            threading.Thread(target=self._answer, args=(far, near), daemon=True).start()
            while piece := near.recv(65536):
                self.heard += piece
                far.sendall(piece)
            far.shutdown(socket.SHUT_RDWR)

    def _answer(self, far: socket.socket, near: socket.socket) -> None:
        with suppress(OSError):
            while piece := far.recv(65536):
                near.sendall(piece)


def test_what_was_recorded_of_a_pilot_cannot_be_played_again(live: Pool, tmp_path: Path) -> None:
    where = load(live.file)
    host, port = where.endpoint.removeprefix("tcp://").split(":")
    ear = Eavesdropper((host, int(port)))
    relayed = msgspec.structs.replace(where, endpoint=ear.endpoint)
    write(tmp_path / "c.json", relayed)
    peer = Peer(tmp_path / "c.json", "recorded").welcomed()
    until(lambda: peer.node in live.nodes())
    assert where.enrolment.encode() not in ear.heard
    peer.die()
    until(lambda: peer.node not in live.nodes())
    joined = live.log().count(f"{peer.node} joined")
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as raw:
        raw.sendall(ear.heard)
        while raw.recv(65536):  # its half of the handshake, then it hangs up
            pass
    joins(live, "after-replay")
    assert live.log().count(f"{peer.node} joined") == joined
    assert peer.node not in live.nodes()


def test_garbage_on_the_port_does_no_harm(live: Pool) -> None:
    host, port = load(live.file).endpoint.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as raw:
        raw.sendall(os.urandom(4096))
    joins(live, "after-garbage")


@pytest.mark.parametrize(
    ("verb", "arguments", "says"),
    [
        ("fly", {}, "unknown verb 'fly'"),
        ("submit", {}, "missing required field"),
        ("submit", {"launch": {"script": 3}}, "Expected `str`, got `int` - at `$.launch.script`"),
        ("submit", {"launch": msgspec.to_builtins(LAUNCH), "min_node": 2}, "unknown field `min_node`"),
        ("cancel", {}, "missing required field `trainer`"),
        ("cancel", {"trainer": "nobody"}, "no trainer named 'nobody'"),
        ("explain", {"trainer": 1}, "Expected `str`"),
        ("wait", {"trainers": ["nobody"]}, "no trainer named 'nobody'"),
        ("status", {"x": 1}, "unknown field `x`"),
    ],
)
def test_a_wrong_request_is_one_clear_line_and_status_2(
    live: Pool, verb: str, arguments: dict[str, object], says: str
) -> None:
    reply = request(live.file, verb, arguments, DEADLINE_S)
    assert says in reply.error
    assert "\n" not in reply.error
    assert reply.exit_status == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"min_nodes": 3, "max_nodes": 2}, "min_nodes 3 exceeds max_nodes 2"),
        ({"curve": [(2, 1.0), (1, 2.0)]}, "strictly increasing"),
        ({"curve": [(1, -1.0)]}, "negative rate"),
        ({"curve": [(1, float("nan"))]}, "not a finite number"),
        ({"fixed_curve": True}, "needs a --curve"),
        ({"reprofile": True}, "--profile never"),
        ({"name": "../x"}, "not a valid trainer name"),
        ({"priority": float("nan")}, "priority"),
    ],
)
def test_a_wrong_submission_changes_nothing(live: Pool, arguments: dict[str, object], says: str) -> None:
    before = len(live.client.trainers().trainers)
    with pytest.raises(UserError, match=says):
        live.submit(**arguments)
    assert len(live.client.trainers().trainers) == before


def test_a_name_that_is_taken_is_refused(live: Pool) -> None:
    live.submit(name="taken")
    with pytest.raises(UserError, match="already"):
        live.submit(name="taken")


def fails(command: list[str]) -> str:
    """The single line with which the command ends, with exit status 2."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 2, done
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_a_second_coordinator_is_refused_by_the_first_ones_run_directory(live: Pool) -> None:
    assert live.process is not None
    assert f"process {live.process.pid} on " in fails(live.command)


def test_a_port_in_use_is_one_clear_line_and_leaves_no_pool_behind(live: Pool, tmp_path: Path) -> None:
    second = Pool(tmp_path)
    port = load(live.file).endpoint.rpartition(":")[2]
    site = tmp_path / "test.py"
    site.write_text(site.read_text().replace('name="test"', f'name="test", port={port}'))
    assert f"127.0.0.1:{port}: the port is in use" in fails(second.command)
    assert not second.file.exists()
    assert not (second.run_dir / "journal.jsonl").exists()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"planner": "oracle"}, "unknown planner 'oracle'"),
        ({"solver": "abacus"}, "unknown solver 'abacus'"),
        ({"t_fwd_s": 0}, "t_fwd_s must be greater than 0"),
        ({"t_fwd_s": "soon"}, "--settings: Expected `float`, got `str` - at `$.t_fwd_s`"),
        ({"objective": "nowhere:f"}, "cannot load the objective"),
        ({"objective": "fun"}, "no objective named 'fun'"),
    ],
)
def test_wrong_settings_are_one_clear_line(tmp_path: Path, wrong: dict[str, Any], says: str) -> None:
    made = Pool(tmp_path)
    assert says in fails([*made.command, *settings(**wrong)])
    assert not made.run_dir.exists()


def test_an_unknown_site_is_one_clear_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pilot.service.daemon", "--run-dir", str(tmp_path / "r"), "--site", "atlantis"]
    assert "unknown site 'atlantis'" in fails(command)
