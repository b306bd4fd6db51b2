"""The cost of 5,000 peers for the coordinator's transport: our frames over TLS 1.3, and libzmq with CURVE.

A server process answers every message. Peers in a few processes connect, say hello, and send heartbeats. Reported are
the server's CPU seconds to admit all peers (connection, handshake, hello, welcome), its memory per peer, its CPU time
per heartbeat, and the cost of 1,000 strangers that only connect: memory, and whether a peer still gets in. libzmq is
measured if pyzmq is installed; the server then works as the coordinator used to: a ROUTER whose monitor reports closed
connections.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Protocol

import psutil

from pilot.protocol.connection import Certificate
from pilot.protocol.gate import allow_many_files
from pilot.protocol.transport import Limits, Link, connect
from pilot.service.agents.server import Listener

PEERS = 5000
PROCESSES = 4
ROUNDS = 4
STRANGERS = 1000
AT_ONCE = 64
LIMITS = Limits(frame_bytes=1 << 20, unsent_bytes=1 << 22, rate_per_s=1000, burst=1000)
HELLO, HEARTBEAT = b"h" * 200, b"b" * 20


@dataclass(frozen=True, slots=True)
class Result:
    """The results for one transport. ``with_strangers_s``: how long one more peer took to get in while the strangers
    were connected; None: it did not within 20 s."""

    transport: str
    peers: int
    registration_cpu_s: float
    registration_s: float
    rss_per_peer_kib: float
    heartbeat_cpu_us: float
    strangers: int
    strangers_rss_mib: float
    with_strangers_s: float | None


class Kind(Protocol):
    """One transport: the server's side and the peers' side."""

    @staticmethod
    def serve(pipe: Pipe) -> None:
        """Send (port, secret) through ``pipe``, then answer every message until killed."""

    @staticmethod
    def peers(port: int, secret: str, count: int, pipe: Pipe) -> None:
        """Connect ``count`` peers and say so; then one round of heartbeats for each request through ``pipe``."""


class Tls:
    """The product's transport."""

    @staticmethod
    def serve(pipe: Pipe) -> None:
        """See :class:`Kind`."""
        asyncio.run(Tls._serve(pipe))

    @staticmethod
    async def _serve(pipe: Pipe) -> None:
        allow_many_files()
        certificate = Certificate.make()
        listener = Listener(certificate.server_context(), "127.0.0.1", 0)
        listener.start(_Answering(listener))
        pipe.send((listener.port, certificate.fingerprint))
        await asyncio.Event().wait()

    @staticmethod
    def peers(port: int, secret: str, count: int, pipe: Pipe) -> None:
        """See :class:`Kind`."""
        asyncio.run(Tls._peers(port, secret, count, pipe))

    @staticmethod
    async def _peers(port: int, secret: str, count: int, pipe: Pipe) -> None:
        allow_many_files()
        peers = [_Peer() for _ in range(count)]
        gate = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(peer.join(port, secret, gate) for peer in peers))
        pipe.send("joined")
        while await asyncio.to_thread(pipe.recv):
            await asyncio.gather(*(peer.beat() for peer in peers))
            pipe.send("heard")


class _Answering:
    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def received(self, link: Link, frame: bytes) -> None:
        self._listener.proven(link, LIMITS)
        link.send(frame)

    def closed(self, link: Link, reason: str) -> None:
        pass


class _Peer:
    """Sends one message at a time and waits for its answer."""

    def __init__(self) -> None:
        self._link: Link | None = None
        self._answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def join(self, port: int, secret: str, gate: asyncio.Semaphore) -> None:
        """Connect and say hello; retry if the server was too busy to accept."""
        async with gate:
            while True:
                try:
                    self._link = await connect("127.0.0.1", port, secret, self, LIMITS)
                    await self._ask(HELLO)
                except OSError:
                    continue
                return

    async def beat(self) -> None:
        """One heartbeat and its answer."""
        await self._ask(HEARTBEAT)

    async def _ask(self, message: bytes) -> None:
        assert self._link is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._link.send(message)
        await self._answer

    def received(self, link: Link, frame: bytes) -> None:  # noqa: ARG002  # the listener's signature
        self._answer.set_result(None)

    def closed(self, link: Link, reason: str) -> None:  # noqa: ARG002  # the listener's signature
        if not self._answer.done():
            self._answer.set_exception(ConnectionResetError(reason))


class Zmq:
    """The product's former transport."""

    @staticmethod
    def serve(pipe: Pipe) -> None:
        """See :class:`Kind`."""
        asyncio.run(Zmq._serve(pipe))

    @staticmethod
    async def _serve(pipe: Pipe) -> None:
        import zmq.asyncio

        allow_many_files()
        public, secret = zmq.curve_keypair()
        context = zmq.asyncio.Context()
        context.set(zmq.MAX_SOCKETS, 65535)
        router = context.socket(zmq.ROUTER)
        router.curve_server, router.curve_secretkey, router.curve_publickey = True, secret, public
        router.setsockopt(zmq.BACKLOG, 4096)
        monitor = router.get_monitor_socket()
        port = router.bind_to_random_port("tcp://127.0.0.1")
        pipe.send((port, public.decode()))
        asyncio.get_running_loop().create_task(Zmq._drain(monitor))
        while True:
            frames = await router.recv_multipart(copy=False)
            await router.send_multipart([frames[0].bytes, frames[-1].bytes])

    @staticmethod
    async def _drain(monitor: Any) -> None:
        from zmq.utils.monitor import parse_monitor_message

        while True:
            parse_monitor_message(await monitor.recv_multipart())

    @staticmethod
    def peers(port: int, secret: str, count: int, pipe: Pipe) -> None:
        """See :class:`Kind`."""
        import zmq

        allow_many_files()
        context = zmq.Context()
        context.set(zmq.MAX_SOCKETS, 65535)
        sockets = []
        for at in range(0, count, AT_ONCE):
            new = [_dealer(context, port, secret) for _ in range(min(AT_ONCE, count - at))]
            for made in new:
                made.send(HELLO)
            for made in new:
                made.recv()
            sockets += new
        pipe.send("joined")
        while pipe.recv():
            for made in sockets:
                made.send(HEARTBEAT)
            for made in sockets:
                made.recv()
            pipe.send("heard")


def _dealer(context: Any, port: int, secret: str) -> Any:
    import zmq

    made = context.socket(zmq.DEALER)
    made.linger = 0
    made.curve_publickey, made.curve_secretkey = zmq.curve_keypair()
    made.curve_serverkey = secret.encode()
    made.connect(f"tcp://127.0.0.1:{port}")
    return made


KINDS: dict[str, type[Kind]] = {"tls": Tls, "zmq": Zmq}
_spawn = multiprocessing.get_context("spawn")


@contextmanager
def running(target: Any, *arguments: Any) -> Iterator[tuple[multiprocessing.process.BaseProcess, Pipe]]:
    """A process and our end of its pipe; it is killed afterwards."""
    ours, theirs = _spawn.Pipe()
    process = _spawn.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()


def measure(name: str, count: int, processes: int) -> Result:
    """Measure one transport."""
    kind = KINDS[name]
    with running(kind.serve) as (server, pipe):
        port, secret = pipe.recv()
        seen = psutil.Process(server.pid)
        with _peers(kind, port, secret, 1, 1):  # one-time costs of the first peer are not counted
            before_cpu_s, before_rss, began_s = _cpu_s(seen), seen.memory_info().rss, time.perf_counter()
            with _peers(kind, port, secret, count, processes) as pipes:
                took_s, cpu_s = time.perf_counter() - began_s, _cpu_s(seen) - before_cpu_s
                rss = seen.memory_info().rss - before_rss
                beat_us = _beats(seen, pipes) / (ROUNDS * count) * 1e6
        strangers_mib, joined_s = _strangers(kind, port, secret, seen)
    per_peer_kib = rss / count / 1024
    return Result(name, count, cpu_s, took_s, per_peer_kib, beat_us, STRANGERS, strangers_mib, joined_s)


@contextmanager
def _peers(kind: type[Kind], port: int, secret: str, count: int, processes: int) -> Iterator[list[Pipe]]:
    """``count`` peers that have joined."""
    if processes == 0:
        yield []
        return
    share = count // processes
    rest = _peers(kind, port, secret, count - share, processes - 1)
    with running(kind.peers, port, secret, share) as (_, pipe), rest as others:
        assert pipe.recv() == "joined"
        yield [pipe, *others]


def _beats(server: psutil.Process, pipes: list[Pipe]) -> float:
    """The server's CPU seconds for all rounds."""
    before_s = _cpu_s(server)
    for _ in range(ROUNDS):
        for pipe in pipes:
            pipe.send("beat")
        for pipe in pipes:
            assert pipe.recv() == "heard"
    return _cpu_s(server) - before_s


def _strangers(kind: type[Kind], port: int, secret: str, server: psutil.Process) -> tuple[float, float | None]:
    """The memory that strangers cost, and how long one more peer takes to get in meanwhile."""
    before = server.memory_info().rss
    sockets = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(STRANGERS)]
    began_s = time.perf_counter()
    try:
        with running(kind.peers, port, secret, 1) as (_, pipe):
            joined_s = time.perf_counter() - began_s if pipe.poll(20) else None
        return (server.memory_info().rss - before) / 2**20, joined_s
    finally:
        for made in sockets:
            with closing(made):
                pass


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Print and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transport", description=__doc__)
    parser.add_argument("--peers", type=int, default=PEERS)
    parser.add_argument("--kinds", nargs="*", choices=[*KINDS], default=[*KINDS])
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    allow_many_files()
    results = []
    for name in arguments.kinds:
        results.append(measure(name, arguments.peers, PROCESSES))
        print(json.dumps(asdict(results[-1])), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
