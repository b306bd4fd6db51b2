"""Agents that only talk: they carry out the coordinator's orders at once, and train nothing.

Each is a connection of its own, over TLS, with the messages of :mod:`pilot.protocol.wire`. Leaders report progress
once a second.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import assert_never

from pilot import __version__
from pilot.agent.coordinator_client import COORDINATOR
from pilot.core.commands import (
    DissolveGroup,
    ExamineGroup,
    PauseGroup,
    ReleaseNode,
    SetCheckpointInterval,
    StopWorker,
    WriteCheckpoint,
)
from pilot.protocol import connection, transport, wire
from pilot.protocol.connection import Connection, life_name
from pilot.protocol.gate import allow_many_files

AT_ONCE = 32
REPORT_S = 1.0
STEP_SAMPLES = 96
EPOCH_STEPS = 1000
GRACE_S = 30.0
VERSIONS = {"Python": "3.12.3", "torch": "2.9.1+cu128", "numpy": "2.3.4", "mpi4py": "4.1.1", "mpich": "5.0.2"}


def main(file: Path, number: int, pipe: Pipe) -> None:
    """Serve the requests from ``pipe``: (verb, count); each is answered when it is done."""
    allow_many_files()
    asyncio.run(Fleet(connection.load(file), number).serve(pipe))


class Fleet:
    """The agents of the ``number``-th process."""

    def __init__(self, where: Connection, number: int) -> None:
        self.where = where
        self.living: dict[str, Agent] = {}
        self._number, self._made = number, 0
        self._dice = random.Random(number)

    async def serve(self, pipe: Pipe) -> None:
        """Run until the other end is closed."""
        while True:
            verb, count = await asyncio.to_thread(pipe.recv)
            match verb:
                case "join":
                    pipe.send(await self._join(count))
                case "lose":
                    pipe.send(self._each(count, Agent.vanish))
                case "notice":
                    pipe.send(self._each(count, Agent.leave))
                case "leaders":
                    pipe.send(sum(agent.leads for agent in self.living.values()))
                case "heartbeats":
                    pipe.send(sum(agent.heard for agent in self.living.values()))

    async def _join(self, count: int) -> int:
        gate = asyncio.Semaphore(AT_ONCE)
        made = [self._new() for _ in range(count)]
        await asyncio.gather(*(agent.join(gate) for agent in made))
        return count

    def _new(self) -> Agent:
        self._made += 1
        return Agent(self, f"n{self._number}{self._made:05}")

    def _each(self, count: int, what: Callable[[Agent], None]) -> int:
        chosen = self._dice.sample(list(self.living.values()), min(count, len(self.living)))
        for agent in chosen:
            what(agent)
        return len(chosen)


class Agent:
    """One pilot. ``leads``: it is rank 0 of a group that trains, and reports."""

    def __init__(self, fleet: Fleet, host: str) -> None:
        self._fleet, self._host = fleet, host
        self._loop = asyncio.get_running_loop()
        self._link: transport.Link | None = None
        self._welcome: asyncio.Future[wire.Welcome] = self._loop.create_future()
        self._group: wire.JoinGroup | None = None
        self._trains = 0
        self._reported = 0
        self._timer: asyncio.TimerHandle | None = None
        self.heard = 0

    @property
    def leads(self) -> bool:
        return self._timer is not None

    async def join(self, gate: asyncio.Semaphore) -> None:
        """Connect and register; retry if the coordinator was too busy to accept."""
        where = self._fleet.where
        async with gate:
            while self._link is None:
                try:
                    self._link = await transport.connect(*where.address, where.certificate, self, COORDINATOR)
                except OSError:
                    continue
            self._say(wire.Credentials(wire.PROTOCOL, __version__, where.enrolment))
            self._say(
                wire.Hello(f"p-{life_name(self._host)}", self._host, self._host, "127.0.0.1", 1, versions=VERSIONS)
            )
            welcome = await self._welcome
        self._fleet.living[self._host] = self
        self._loop.call_later(random.uniform(0, welcome.heartbeat_s), self._beat, welcome.heartbeat_s)

    def vanish(self) -> None:
        """Like an agent that is killed: the connection closes without a message."""
        self._gone()
        if self._link is not None:
            self._link.drop("")

    def leave(self) -> None:
        """Give it notice."""
        del self._fleet.living[self._host]
        self._say(wire.Noticed("the scheduler preempts it", GRACE_S))

    # --- of the transport ------------------------------------------------------------------------------------------

    def received(self, link: transport.Link, frame: bytes) -> None:  # noqa: ARG002  # the protocol's signature
        """A message from the coordinator."""
        message = wire.decode_at_agent(frame)
        match message:
            case wire.Welcome():
                self._welcome.set_result(message)
            case wire.HeartbeatSeen():
                self.heard += 1
            case wire.StartWorker():
                self._say(wire.WorkerReady(message.trainer, 1.0))
            case StopWorker():
                self._stop()
                self._say(wire.WorkerExited(message.trainer, "stopped"))
            case wire.JoinGroup():
                self._group = message
                puts = {f"P{message.node}-businesscard": f"{self._host:x<60}"}
                self._say(wire.RankAddress(message.trainer, message.generation, puts, "127.0.0.1:1"))
            case wire.GroupAddresses():
                self._formed(message)
            case wire.LeaveGroup():
                self._stop()
            case PauseGroup():
                self._stop()
                self._say(wire.RankPaused(message.trainer, message.generation, _step()))
            case DissolveGroup():
                if message.generation == self._trains:
                    self._stop()
            case WriteCheckpoint():
                self._say(wire.CheckpointWritten(message.trainer, 1, _step(), asked=True, path="/x", alone_s=0.1))
            case ReleaseNode() | wire.Forgotten() | wire.Refused():
                self.vanish()
            case ExamineGroup() | SetCheckpointInterval():
                pass
            case _:
                assert_never(message)

    def closed(self, link: transport.Link, reason: str) -> None:  # noqa: ARG002  # the protocol's signature
        """The connection is lost."""
        self._gone()

    # --- what it does ----------------------------------------------------------------------------------------------

    def _gone(self) -> None:
        self._fleet.living.pop(self._host, None)
        self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _formed(self, told: wire.GroupAddresses) -> None:
        group = self._group
        if group is None or group.generation != told.generation:
            return
        self._stop()
        self._trains = group.generation
        if group.node == 0:
            self._reported = _step()
            self._say(wire.GroupFormed(group.trainer, group.generation, self._reported))
            self._timer = self._loop.call_later(REPORT_S, self._report)

    def _beat(self, every_s: float) -> None:
        if self._link is not None and self._say(wire.Heartbeat(time.time())):
            self._loop.call_later(every_s, self._beat, every_s)

    def _report(self) -> None:
        group = self._group
        assert group is not None
        begin, end = self._reported, max(self._reported + 1, _step())
        epoch, cursor = begin // EPOCH_STEPS, begin % EPOCH_STEPS * STEP_SAMPLES
        row = (self._trains, epoch, begin, end, cursor, cursor + (end - begin) * STEP_SAMPLES)
        self._reported = end
        rate = 1000.0 * group.size**0.9 * random.uniform(0.97, 1.03)
        metrics = {"loss": 1 / (1 + end), "accuracy": 0.9}
        samples = end * STEP_SAMPLES
        self._say(wire.Progress(group.trainer, self._trains, end, epoch, samples, rate, ledger=[row], metrics=metrics))
        self._timer = self._loop.call_later(REPORT_S, self._report)

    def _say(self, message: wire.Message) -> bool:
        return self._link is not None and self._link.send(wire.encode(message))


def _step() -> int:
    """All agents count one step a second, from the same moment."""
    return int(time.monotonic())
