"""Strangers on the coordinator's port: they cost little, they are dropped, and known peers do not suffer from them."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import psutil
import pytest

from pilot.core.errors import UserError
from pilot.protocol import gate, wire
from pilot.protocol.connection import Certificate, client_context, load
from pilot.protocol.framing import framed
from pilot.protocol.gate import UNPROVEN_MAX
from pilot.protocol.transport import ClientLink, Limits, Link, WrongServer, connect
from pilot.service.agents.server import UNPROVEN, Listener, gate_at
from tests.integration.live_pool import DEADLINE_S, Peer, Pool, pool, until
from tests.streams import FREE, Stream

STRANGERS = 1000
KNOWN = Limits(frame_bytes=1 << 20, unsent_bytes=1 << 20, rate_per_s=1e6, burst=1e6)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Pool]:
    with pool(tmp_path) as made:
        yield made


@contextmanager
def strangers(live: Pool, count: int) -> Iterator[None]:
    """So many idle connections to the coordinator's port."""
    address = load(live.file).address
    held = [socket.create_connection(address, timeout=DEADLINE_S) for _ in range(count)]
    yield
    for stranger in held:
        stranger.close()


def memory_mib(live: Pool) -> float:
    assert live.process is not None
    return float(psutil.Process(live.process.pid).memory_info().rss) / 2**20


# --- a real coordinator ----------------------------------------------------------------------------------------------


def test_a_thousand_idle_connections_harm_nobody_and_cost_little(live: Pool) -> None:
    known = Peer(live.file, "known").welcomed()
    before_mib = memory_mib(live)
    with strangers(live, STRANGERS):
        late = Peer(live.file, "late").welcomed()
        until(lambda: {known.node, late.node} <= set(live.nodes()))
        assert memory_mib(live) - before_mib < 30
        known.say(wire.Heartbeat(1.0))
        assert known.node in live.nodes()
    assert "Traceback" not in live.log()
    known.die()
    late.die()


def test_a_stranger_is_ended_in_time_though_it_says_something_now_and_then(live: Pool) -> None:
    with socket.create_connection(load(live.file).address, timeout=DEADLINE_S) as stranger:
        began_s = time.monotonic()
        stranger.settimeout(0.5)
        with suppress(ConnectionError):
            while True:
                stranger.sendall(b"\x16")  # the first byte of a TLS record, never followed by the rest
                with suppress(TimeoutError):
                    if stranger.recv(1) == b"":
                        break
                assert time.monotonic() - began_s < 3 * gate.PROVE_LIMIT_S


def test_what_is_sent_without_a_token_is_bounded_and_not_decoded(live: Pool) -> None:
    before_mib = memory_mib(live)
    for _ in range(20):
        stream = Stream(load(live.file).address)
        large = wire.Credentials(wire.PROTOCOL, "0", "x" * (8 << 20))
        stream.send(wire.encode(large))
        assert stream.closed()
        stream.close()
    assert memory_mib(live) - before_mib < 20
    Peer(live.file, "after").welcomed()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f",
        os.urandom(100_000),
        b"\x16\x03\x01\x40\x00" + b"\x01" * 200_000,
        b"",
    ],
    ids=["http", "zmtp", "noise", "record", "nothing"],
)
def test_what_is_no_tls_is_hung_up_on(live: Pool, sent: bytes) -> None:
    stranger = socket.create_connection(load(live.file).address, timeout=DEADLINE_S)
    with stranger, suppress(OSError):
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(1 << 16):
            pass
    Peer(live.file, "after").welcomed()
    assert "Traceback" not in live.log()


def test_only_tls_1_3_is_spoken(live: Pool) -> None:
    context = client_context()
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode, old.maximum_version = False, ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2
    with context.wrap_socket(socket.create_connection(load(live.file).address, timeout=DEADLINE_S)) as stream:
        assert stream.version() == "TLSv1.3"
    plain = socket.create_connection(load(live.file).address, timeout=DEADLINE_S)
    with plain, pytest.raises((ssl.SSLError, ConnectionError)):
        old.wrap_socket(plain)


def test_without_descriptors_it_waits_says_so_once_and_goes_on(own: Pool) -> None:
    live = own
    assert live.process is not None
    known = Peer(live.file, "known").welcomed()
    seen = psutil.Process(live.process.pid)
    resource.prlimit(live.process.pid, resource.RLIMIT_NOFILE, (seen.num_fds() + 8, 20000))
    with strangers(live, 40):
        until(lambda: "cannot accept connections for now" in live.log())
        known.say(wire.Heartbeat(1.0))
        assert isinstance(wire.decode_at_agent(known.socket.recv()), wire.HeartbeatSeen)
    Peer(live.file, "after").welcomed()
    assert live.log().count("cannot accept connections for now") == 1
    assert "Traceback" not in live.log()


def test_sigterm_works_while_strangers_hold_all_places(own: Pool) -> None:
    live = own
    assert live.process is not None
    with strangers(live, 2 * UNPROVEN_MAX):
        live.process.send_signal(signal.SIGTERM)
        assert live.ended() == 0


def test_a_pilot_that_floods_is_slowed_down_and_the_others_are_served(live: Pool) -> None:
    flood, other = Peer(live.file, "flood").welcomed(), Peer(live.file, "other").welcomed()
    flood.socket.tls.setblocking(False)
    beats = framed(wire.encode(wire.Heartbeat(0.0))) * 2000
    sent = 0
    with suppress(ssl.SSLWantWriteError, BlockingIOError, OSError):
        for _ in range(500):
            flood.socket.tls.send(beats)
            sent += 1
    assert sent < 500, "a peer that sends more than its rate is made to wait"
    began_s = time.monotonic()
    assert other.node in live.nodes()
    assert time.monotonic() - began_s < DEADLINE_S
    flood.die()
    until(lambda: flood.node not in live.nodes())
    assert other.node in live.nodes()
    other.die()


# --- the transport alone ---------------------------------------------------------------------------------------------


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Make an ordinary test of a coroutine."""

    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


class Heard:
    """Records the reports of links; ``links`` are those to answer."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.links: list[Link] = []
        self.reasons: list[str] = []
        self.listener: Listener | None = None

    def received(self, link: Link, frame: bytes) -> None:
        if self.listener is not None:
            self.listener.proven(link, KNOWN)
            self.links.append(link)
        self.frames.append(frame)

    def closed(self, link: Link, reason: str) -> None:  # noqa: ARG002  # the original's signature
        self.reasons.append(reason)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Listener, Heard, str]]:
    certificate, heard = Certificate.make(), Heard()
    listener = heard.listener = Listener(certificate.server_context(), "127.0.0.1", 0)
    listener.start(heard)
    try:
        yield listener, heard, certificate.fingerprint
    finally:
        listener.close()
        await asyncio.sleep(0)


async def until_so(what: object) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not what():
            await asyncio.sleep(0.005)


@in_a_loop
async def test_frames_come_in_order_and_a_close_is_told_after_them() -> None:
    async with serving() as (listener, heard, pin):
        link = await connect("127.0.0.1", listener.port, pin, Heard(), FREE)
        sent = [b"first", *(os.urandom(size) for size in (0, 1, 16384, 16385, 300_000))]
        for body in sent:
            assert link.send(body)
        link.close()
        await until_so(lambda: heard.reasons)
        assert heard.frames == sent
        assert heard.reasons == [""]
        assert not link.send(b"after")


@in_a_loop
async def test_another_certificate_is_not_taken_and_nothing_is_sent_to_it() -> None:
    async with serving() as (listener, heard, _):
        with pytest.raises(WrongServer, match="certificate"):
            await connect("127.0.0.1", listener.port, Certificate.make().fingerprint, Heard(), FREE)
        await until_so(lambda: heard.reasons)
        assert heard.frames == []


@in_a_loop
async def test_a_server_that_does_not_speak_tls_is_named_as_such() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:  # noqa: ARG001  # the original's signature
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(WrongServer, match="TLS"):
            await connect("127.0.0.1", port, "0" * 64, Heard(), FREE)


@in_a_loop
async def test_a_peer_that_reads_nothing_is_dropped_before_much_waits_for_it() -> None:
    async with serving() as (listener, heard, pin):
        link = await connect("127.0.0.1", listener.port, pin, Heard(), FREE)
        assert isinstance(link, ClientLink)
        link.send(b"hello")
        await until_so(lambda: heard.links)
        link._transport.pause_reading()
        sent = 0
        while heard.links[0].send(b"x" * 65536):
            sent += 1
            assert sent < 1000
            await asyncio.sleep(0)
        await until_so(lambda: heard.reasons)
        assert heard.reasons == ["it does not read what we send"]
        link.drop("")


@in_a_loop
async def test_a_frame_that_is_too_large_ends_its_connection() -> None:
    async with serving() as (listener, heard, pin):
        link = await connect("127.0.0.1", listener.port, pin, Heard(), FREE)
        link.send(b"x" * (UNPROVEN.frame_bytes + 1))
        await until_so(lambda: heard.reasons)
        assert "larger than" in heard.reasons[0]
        assert heard.frames == []


@in_a_loop
async def test_strangers_are_few_and_the_oldest_makes_room() -> None:
    async with serving() as (listener, heard, pin):
        for _ in range(3 * UNPROVEN_MAX):
            _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            heard.links.append(writer)
            assert listener._gate.unproven <= UNPROVEN_MAX
        strangers, heard.links = heard.links, []
        async with asyncio.timeout(DEADLINE_S):
            link = await connect("127.0.0.1", listener.port, pin, Heard(), FREE)
        link.send(b"here")
        await until_so(lambda: heard.frames == [b"here"])
        link.close()
        for writer in strangers:
            writer.close()


def test_a_port_in_use_is_one_clear_line() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(UserError, match="the port is in use"):
        gate_at("127.0.0.1", taken.getsockname()[1])
