"""A coordinator controlled by the test, and real agents that connect to it."""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import psutil

from pilot import __version__
from pilot.agent.workdir import MARK
from pilot.host import private_folder, proc
from pilot.protocol import connection, wire
from pilot.protocol.connection import Certificate
from pilot.protocol.transport import Link
from pilot.submission.submission import LaunchSpec
from tests.streams import ThreadedServer

TOKEN = "enrolment-token-of-this-test"
LIMIT_S = 60.0

_AHEAD = """
import sys, time
right = time.time
time.time = lambda: right() + {}
from pilot.cli.main import main
main()
"""

M = TypeVar("M", bound=wire.Message)


def until(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> float:
    """Wait for ``condition`` with a deadline; returns how long it took."""
    started_s = time.monotonic()
    while not condition():
        assert time.monotonic() - started_s < limit_s, f"not within {limit_s} s: {what}"
        time.sleep(0.01)
    return time.monotonic() - started_s


@dataclass
class Peer:
    """One agent as the coordinator sees it."""

    link: Link
    hello: wire.Hello
    inbox: list[wire.Message] = field(default_factory=list)

    @property
    def mark(self) -> str:
        return f"{MARK}={self.hello.pilot}"

    def processes(self) -> list[psutil.Process]:
        """The agent's descendants that are still alive."""
        return [p for p in proc.marked(self.mark) if p.status() != psutil.STATUS_ZOMBIE]


class Coordinator:
    """Our own server. Answers ``Hello`` with ``Welcome``; everything else is up to the test."""

    def __init__(self, folder: Path, port: int = 0, certificate: Certificate | None = None) -> None:
        self.certificate = certificate or Certificate.make()
        self._server = ThreadedServer(self.certificate, port)
        self.port = self._server.port
        self.file = folder / "connection.json"
        self.welcome = {"coordinator": "lab", "heartbeat_s": 0.2, "silent_s": 5.0, "orphan_s": 600.0, "grace_s": 10.0}
        self.peers: dict[Link, Peer] = {}
        self._known: set[Link] = set()
        self._admitted: set[Link] = set()
        endpoint, pin = f"tcp://127.0.0.1:{self.port}", self.certificate.fingerprint
        connection.write(self.file, connection.Connection(endpoint, pin, "", TOKEN, "lab", __version__))

    def close(self) -> None:
        self._server.close()

    def send(self, peer: Peer, message: wire.Message) -> None:
        self._server.send(peer.link, wire.encode(message))

    def peer(self, agent: subprocess.Popen[bytes]) -> Peer:
        """The agent, once it has registered (again, if it is known already)."""

        def here() -> Peer | None:
            assert agent.poll() is None, f"the agent ended with status {agent.returncode}"
            return next((p for p in self.peers.values() if p.hello.pid == agent.pid), None)

        self._pump_until(lambda: here() is not None, f"Hello of {agent.pid}", LIMIT_S)
        found = here()
        assert found is not None
        return found

    def expect(self, peer: Peer, kind: type[M], limit_s: float = LIMIT_S) -> M:
        """The next message of ``kind`` from ``peer``; earlier ones of other kinds stay queued."""

        def found() -> M | None:
            return next((m for m in peer.inbox if isinstance(m, kind)), None)

        self._pump_until(lambda: found() is not None, f"{kind.__name__}, only {peer.inbox}", limit_s)
        message = found()
        assert message is not None
        peer.inbox.remove(message)
        return message

    def pump(self, for_s: float) -> None:
        """Receive whatever comes for a while."""
        end_s = time.monotonic() + for_s
        while (left_s := end_s - time.monotonic()) > 0:
            self._take(left_s)

    def _pump_until(self, done: Callable[[], bool], what: str, limit_s: float) -> None:
        end_s = time.monotonic() + limit_s
        while not done():
            left_s = end_s - time.monotonic()
            assert left_s > 0, f"not within {limit_s} s: {what}"
            self._take(left_s)

    def _take(self, limit_s: float) -> None:
        try:
            link, frame = self._server.came.get(timeout=limit_s)
        except queue.Empty:
            return
        if link in self._admitted:
            self._said(link, wire.decode_from_agent(frame))
        elif link not in self._known:
            self._shown(link, wire.decode_credentials(frame))

    def _shown(self, link: Link, credentials: wire.Credentials) -> None:
        self._known.add(link)
        if credentials.token == TOKEN:
            self._admitted.add(link)
        else:
            self._server.send(link, wire.encode(wire.Refused("the token is wrong")))
            self._server.drop(link)

    def _said(self, link: Link, message: wire.FromAgent) -> None:
        if isinstance(message, wire.Hello):
            self.peers[link] = Peer(link, message)
            node = f"{message.host}.{message.pilot}"
            self._server.send(link, wire.encode(wire.Welcome(node=node, **self.welcome)))
        elif isinstance(message, wire.Heartbeat):
            self._server.send(link, wire.encode(wire.HeartbeatSeen(message.sent_s)))
        elif link in self.peers:
            self.peers[link].inbox.append(message)


class Agents:
    """Real ``pilot agent`` processes with their own temporary directory; all are gone after :meth:`close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = Path(tempfile.mkdtemp(prefix="pa-", dir="/tmp"))  # short, since sockets are created in it
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, file: Path, *arguments: str, ahead_s: float = 0.0, **environment: str) -> subprocess.Popen[bytes]:
        """Start an agent whose wall clock is ``ahead_s`` ahead of the coordinator's."""
        log = (self.folder / f"agent{len(self.running)}.err").open("wb")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "PILOT"))}
        more = {"TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1", "PILOT_CONNECTION": str(file)} | environment
        command = [sys.executable, "-P", "-c", _AHEAD.format(ahead_s), "agent", *arguments]
        self.running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, env=inherited | more))
        return self.running[-1]

    def said(self, agent: subprocess.Popen[bytes]) -> str:
        return (self.folder / f"agent{self.running.index(agent)}.err").read_text()

    def workdirs(self) -> list[Path]:
        return list(self.temporary.iterdir())

    def close(self) -> None:
        for agent in self.running:
            if agent.poll() is None:
                agent.send_signal(signal.SIGCONT)
                proc.kill(proc.tree(agent.pid))
                agent.wait()
        marks = [f"{MARK}={home.name}" for home in self.workdirs()]
        until(lambda: not any(proc.marked(mark) for mark in marks), "the end of all processes")
        shutil.rmtree(self.temporary, ignore_errors=True)


def launch(folder: Path, script: str, *arguments: str, trainer: str = "t1") -> wire.StartWorker:
    """An order to run ``script`` (its text), in a folder such as a submission makes."""
    path, directory = folder / f"{trainer}.py", folder / "trainers" / trainer
    path.write_text(script)
    private_folder.make(directory / "checkpoints")
    digest, given = hashlib.sha256(path.read_bytes()).hexdigest(), {"FROM_USER": "yes"}
    launched = LaunchSpec(path.name, digest, list(arguments), str(folder), sys.executable, given)
    return wire.StartWorker(trainer, "", str(directory), launched, 60.0, 2)


def launched_with(order: wire.StartWorker, **changes: Any) -> wire.StartWorker:
    """The same order with another launch."""
    return msgspec.structs.replace(order, launch=msgspec.structs.replace(order.launch, **changes))


class Lab(NamedTuple):
    """A coordinator, and the agents that connect to it."""

    coordinator: Coordinator
    agents: Agents

    def start(self, *arguments: str, **how: Any) -> tuple[subprocess.Popen[bytes], Peer]:
        """Start an agent, see :meth:`Agents.start`, and wait until it has registered."""
        agent = self.agents.start(self.coordinator.file, *arguments, **how)
        return agent, self.coordinator.peer(agent)

    def run(self, order: wire.StartWorker, *arguments: str) -> tuple[subprocess.Popen[bytes], Peer]:
        """Start an agent and give it ``order``."""
        agent, peer = self.start(*arguments)
        self.send(peer, order)
        return agent, peer

    def send(self, peer: Peer, message: wire.Message) -> None:
        self.coordinator.send(peer, message)

    def expect(self, peer: Peer, kind: type[M]) -> M:
        return self.coordinator.expect(peer, kind)

    def ended(self, order: wire.StartWorker) -> wire.WorkerExited:
        """How the worker of ``order`` ended on a new agent."""
        return self.expect(self.run(order)[1], wire.WorkerExited)


def lab(folder: Path) -> Iterator[Lab]:
    """Body of the fixture."""
    made = Lab(Coordinator(folder), Agents(folder))
    yield made
    made.agents.close()
    made.coordinator.close()
