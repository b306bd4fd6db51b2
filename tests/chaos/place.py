"""The setting of a storm: a pool, a relay to its coordinator and, for root, a network and small disks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pilot.protocol import connection
from tests.chaos.disk import SmallDisk
from tests.chaos.network import Lan
from tests.chaos.relay import Relay
from tests.pools import Pool


@dataclass
class Place:
    """The pool must be up. ``ports`` are its agents' network ports, by pid."""

    pool: Pool
    relay: Relay
    lan: Lan | None = None
    disks: list[SmallDisk] = field(default_factory=list)
    ports: dict[int, int] = field(default_factory=dict)

    def agent(self, *, through_relay: bool = False) -> subprocess.Popen[bytes]:
        """One more pilot, with its network up."""
        file = self._relayed() if through_relay else None
        if self.lan is None:
            return self.pool.agent(connection=file)
        taken = {self.ports[agent.pid] for agent in self.living()}
        number = next(n for n in range(len(taken) + 1) if n not in taken)
        within = self.lan.port(number)
        self.lan.mend(number)
        agent = self.pool.agent(*within, connection=file)
        self.ports[agent.pid] = number
        return agent

    def living(self) -> list[subprocess.Popen[bytes]]:
        """The agents that are still running."""
        return [agent for agent in self.pool.agents if agent.poll() is None]

    def small_disk(self, trainer: str) -> None:
        """Give the checkpoints of a trainer that has not started yet their own disk."""
        self.disks.append(SmallDisk(self.pool.run_dir / "trainers" / trainer / "checkpoints"))

    def _relayed(self) -> Path:
        where = connection.load(self.pool.run_dir / "connection.json")
        path = self.pool.folder / "relayed.json"
        connection.write(path, msgspec.structs.replace(where, endpoint=self.relay.endpoint))
        return path


@contextmanager
def place(pool: Pool, *, lan: bool) -> Iterator[Place]:
    """Start ``pool``; at the end everything else is removed, but the pool is left to its owner."""
    network = Lan() if lan else None
    try:
        if network is not None:
            pool.address = network.address
            os.environ["MPIR_CVAR_NOLOCAL"] = "1"  # the pilots' ranks communicate through the network, which can be cut
        pool.up()
        host, port = connection.load(pool.run_dir / "connection.json").endpoint.removeprefix("tcp://").split(":")
        made = Place(pool, Relay((host, int(port))), network)
        try:
            yield made
        finally:
            made.relay.close()
            pool.end()
            for disk in made.disks:
                disk.close()
    finally:
        os.environ.pop("MPIR_CVAR_NOLOCAL", None)
        if network is not None:
            network.close()
