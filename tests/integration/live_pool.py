"""A coordinator in its own process, and peers that speak the wire protocol to it over real TLS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pilot import __version__
from pilot.core.errors import PilotError
from pilot.protocol import connection, wire
from pilot.protocol.connection import life_name
from pilot.protocol.pool_client import PoolClient
from pilot.protocol.pool_status import TrainerStatus
from pilot.rundir.journal import read, replay
from pilot.service.settings import fresh_core
from pilot.submission.submission import LaunchSpec, Submission
from tests.streams import Stream

M = TypeVar("M", bound=wire.Message)

DEADLINE_S = 180.0

LAUNCH = LaunchSpec(script="/s.py", script_sha256="", arguments=[], cwd="/", python="python", environment={})

SITE = """
from pilot.site.site import Site
site = Site(name="test", scheduler="local", bind_address="127.0.0.1", interface="lo", grace_s=1, poll_s=1,
            heartbeat_s=0.2, silent_s={silent_s}, orphan_s={orphan_s}, form_timeout_s={form_timeout_s}, check="off")
"""


def until(what: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
    """The first true value of ``what``; fails after the deadline."""
    end_s = time.monotonic() + deadline_s
    while not (value := what()):
        assert time.monotonic() < end_s, f"still not so after {deadline_s} s"
        time.sleep(0.01)
    return value


def settings(**changed: Any) -> tuple[str, str]:
    """The coordinator's options for these settings; unless ``changed``, its planner is dp."""
    return "--settings", json.dumps({"planner": "dp"} | changed)


class Pool:
    """A coordinator, started from a site file written here."""

    def __init__(self, folder: Path, silent_s: float = 60, orphan_s: float = 60, form_timeout_s: float = 20) -> None:
        self.run_dir = folder / "run"
        self.file = self.run_dir / "connection.json"
        self.form_timeout_s = form_timeout_s
        site = folder / "test.py"
        site.write_text(SITE.format(silent_s=silent_s, orphan_s=orphan_s, form_timeout_s=form_timeout_s))
        self.command = [
            sys.executable,
            "-m",
            "pilot.service.daemon",
            "--run-dir",
            str(self.run_dir),
            "--site",
            str(site),
        ]
        self.options = ["--pilots", "0"]
        self.process: subprocess.Popen[str] | None = None

    def up(self, *options: str) -> None:
        """Start it and wait until it answers."""
        self.process = subprocess.Popen(
            [*self.command, *settings(), *(options or self.options)], stderr=subprocess.PIPE, text=True
        )
        until(lambda: self._answers())

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.process.stderr.read() if self.process.stderr else ""
        if not self.file.exists():
            return False
        try:
            PoolClient(self.file, 2.0).trainers()
        except PilotError:
            return False  # the file is from its earlier life
        return True

    @property
    def client(self) -> PoolClient:
        """A client of its coordinator."""
        return PoolClient(self.file, DEADLINE_S)

    def submit(self, **arguments: Any) -> str:
        """Submit a trainer; returns its id."""
        return self.client.submit(Submission(launch=LAUNCH, **arguments)).trainer

    def trainer(self, name: str) -> TrainerStatus:
        """What ``status`` reports for a trainer."""
        return self.client.status().trainer(name)

    def nodes(self) -> list[str]:
        """The nodes of the pool."""
        return [node.node for node in self.client.status().pool]

    def log(self) -> str:
        """The coordinator's log."""
        return (self.run_dir / "coordinator.log").read_text()

    def down(self) -> int:
        """Ask for a drain and wait for the end; returns its exit status."""
        self.client.down()
        return self.ended()

    def ended(self) -> int:
        """Wait for the process to end; returns its exit status."""
        assert self.process is not None
        return self.process.wait(DEADLINE_S)

    def joined(self, count: int) -> list[Peer]:
        """Pilots that have joined, one on each of so many hosts."""
        peers = [Peer(self.file, f"p{n}", f"n{n}").welcomed() for n in range(count)]
        until(lambda: len(self.nodes()) == count)
        return peers

    def running(self, count: int, **arguments: Any) -> tuple[str, list[Peer]]:
        """A trainer that trains on so many new nodes, and their pilots."""
        peers = self.joined(count)
        trainer = self.submit(name="a", max_nodes=count, **arguments)
        warm_all(peers, trainer)
        assert form(peers, trainer, resumed=0) == 1
        until(lambda: self.trainer(trainer).phase == "running")
        return trainer, peers

    def replays(self) -> None:
        """Check that its journal gives the same commands again."""
        contents = read(self.run_dir / "journal.jsonl")
        assert replay(contents, fresh_core(contents)) == ""

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.up()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill it without warning."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, number)
            self.process.wait(DEADLINE_S)


@contextmanager
def pool(folder: Path, *options: str, **site: float) -> Iterator[Pool]:
    """A coordinator that is gone afterwards, whatever happens."""
    made = Pool(folder, **site)
    try:
        made.up(*options)
        yield made
    finally:
        made.kill()


class Peer:
    """One agent's side of the wire, controlled by a test. It has no workers: the test speaks for them.

    ``pilot`` is the secret behind its name: with the same one, it comes back as the same pilot.
    """

    def __init__(self, file: Path, pilot: str, host: str = "host", **changes: Any) -> None:
        where = connection.load(file)
        self.secret, self.host = pilot, host
        pilot = f"{pilot}-{life_name(pilot)}" if changes.pop("proven", True) else pilot
        self.node = f"{host}.{pilot}"
        self.socket = Stream(where.address)
        self._news: list[wire.Message] = []
        shown = {"protocol": wire.PROTOCOL, "version": __version__, "token": where.enrolment}
        self.say(wire.Credentials(**{name: changes.pop(name, value) for name, value in shown.items()}))
        secret = changes.pop("secret", self.secret)
        told = {"host": host, "address": "127.0.0.1", "pid": os.getpid(), **changes}
        self.hello = wire.Hello(pilot, secret, **told)
        self.say(self.hello)

    def say(self, message: wire.Message) -> None:
        """Send a message."""
        self.socket.send(wire.encode(message))

    def has_news(self, limit_s: float) -> bool:
        """Whether a message arrives in time; answers to heartbeats do not count."""
        end_s = time.monotonic() + limit_s
        while not self._news and self.socket.poll(max(0.0, end_s - time.monotonic())):
            message = wire.decode_at_agent(self.socket.recv())
            if not isinstance(message, wire.HeartbeatSeen):
                self._news.append(message)
        return bool(self._news)

    def next(self) -> wire.Message:
        """The next message; answers to heartbeats are skipped."""
        assert self.has_news(DEADLINE_S), f"{self.node} waited in vain"
        return self._news.pop(0)

    def hears(self, kind: type[M], deadline_s: float = DEADLINE_S) -> M:
        """The next message, which must be a ``kind``; answers to heartbeats are skipped."""
        assert self.has_news(deadline_s), f"{self.node} waited in vain for {kind.__name__}"
        message = self._news.pop(0)
        assert isinstance(message, kind), f"{self.node} expected {kind.__name__}, got {message}"
        return message

    def welcomed(self) -> Peer:
        """Wait for the welcome."""
        assert self.hears(wire.Welcome).node == self.node
        return self

    def die(self) -> None:
        """As by SIGKILL: the connection closes without a message."""
        self.socket.close()


def back(live: Pool, peer: Peer, trainer: str, generation: int, step: int, ready: bool = True) -> Peer:
    """The same pilot on a new connection, with a worker."""
    peer.die()
    worker = (trainer, live.trainer(trainer).uid, generation, step, ready)
    return Peer(live.file, peer.secret, peer.host, workers=[worker]).welcomed()


def warm(peer: Peer, trainer: str) -> None:
    """Answer the order to start a worker."""
    assert peer.hears(wire.StartWorker).trainer == trainer
    peer.say(wire.WorkerReady(trainer, 0.1))


def warm_all(peers: list[Peer], trainer: str) -> None:
    """Report ready once all have orders to start a worker: a trainer starts on its minimum, and the plan for its batch
    adds the others to a group that has not formed yet.
    """
    for peer in peers:
        assert peer.hears(wire.StartWorker).trainer == trainer
    for peer in peers:
        peer.say(wire.WorkerReady(trainer, 0.1))


def form(members: list[Peer], trainer: str, step: int = 0, resumed: int | None = None) -> int:
    """Play the forming of a group in which nobody has trained yet; returns its generation."""
    for rank, member in enumerate(members):
        join = member.hears(wire.JoinGroup)
        assert (join.trainer, join.node, join.nodes) == (trainer, rank, len(members))
        member.say(wire.RankAddress(trainer, join.generation, {f"rank-{rank}": "address"}, "127.0.0.1:1"))
    for member in members:
        assert member.hears(wire.GroupAddresses).puts == {f"rank-{rank}": "address" for rank in range(len(members))}
    members[0].say(wire.GroupFormed(trainer, join.generation, step, resumed))
    return join.generation
