"""Four nodes on a slow network, each with the same share of the machine's cores: a pool of pilots in namespaces, and
what its trainers have recorded.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.quotas import Quota, quotas
from benchmarks.slow_network import SlowLan
from tests.pools import Pool

SCRIPT = Path(__file__).with_name("seldom_script.py")
_USED = ("subjects.py", "turns.py")
"""What the script imports from this folder."""
NODES, SPARE = 4, 2
"""Nodes of a group, and how many join later."""
_DEADLINE_S = 120.0
_LOOK_S = 0.05
_TAIL_BYTES = 256
_STARTING = 2.0
"""Cores of a node that starts."""


class Step(NamedTuple):
    """An inner step of a node: when it ended, and the size of the group and the round that it was in."""

    end_s: float
    size: int
    round: int


class Moment(NamedTuple):
    """A time, and how many bytes all nodes have sent until then."""

    at_s: float
    sent_bytes: int


@dataclass
class Trainer:
    """A trainer of the pool; its processes record their steps in ``folder``. ``killed``: the records of those that do
    not live any more.
    """

    name: str
    folder: Path
    killed: set[str] = field(default_factory=set)

    def steps(self, most_bytes: int = 1 << 30) -> dict[str, list[Step]]:
        """Return the steps of each process that lives, by its record's name; only those in the last bytes of that."""
        living = {path.name: path for path in sorted(self.folder.glob("steps.*")) if path.name not in self.killed}
        return {name: _read(path, most_bytes) for name, path in living.items()}

    def newest(self, size: int) -> dict[str, Step]:
        """Return the newest step of each process that is in a group of ``size``; empty until all of them are."""
        found = {name: steps[-1] for name, steps in self.steps(_TAIL_BYTES).items() if steps}
        return found if [step.size for step in found.values()] == [size] * size else {}

    def steps_between(self, begin_s: float, end_s: float) -> int:
        """Return how many inner steps all its processes did in this time."""
        return sum(begin_s < step.end_s <= end_s for steps in self.steps().values() for step in steps)


def _code(folder: Path) -> Path:
    """Copy the script, and what it imports, into ``folder``; return its path."""
    (folder / "benchmarks").mkdir()
    for name in _USED:
        shutil.copy(SCRIPT.with_name(name), folder / "benchmarks")
    return Path(shutil.copy(SCRIPT, folder))


def _read(path: Path, most_bytes: int) -> list[Step]:
    """Return the steps in the last bytes of a process's record."""
    with path.open("rb") as record:
        begin = max(0, os.fstat(record.fileno()).st_size - most_bytes)
        record.seek(begin)
        lines = (
            record.read().decode().split("\n")[begin > 0 : -1]
        )  # the first may have lost its begin, the last its end
    rows = [line.split() for line in lines]
    return [Step(float(end_s), int(size), int(number)) for end_s, size, number in rows]


class _Site(Pool):
    """A pool whose checkpoints and time-outs do not disturb a measurement."""

    def site(self) -> str:
        text = super().site()
        for name, seconds in (("checkpoint_interval_s", 3600), ("heartbeat_s", 2), ("silent_s", 30)):
            text = re.sub(rf"\b{name}=[0-9.]+", f"{name}={seconds}", text)
        return text


@dataclass
class SlowPool:
    """The pool. ``agents``: its pilots, each in a namespace of ``lan`` and limited by one of ``limits``."""

    pool: Pool
    lan: SlowLan
    limits: list[Quota]
    cores: float
    agents: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _killed: int = 0

    def add(self) -> None:
        """Start one more pilot; the limit of its cores does not apply yet."""
        number = len(self.agents)
        self.limits[number].limit(_STARTING)
        self.agents.append(self.pool.agent(*self.lan.port(number + 1)))
        self.limits[number].add(self.agents[-1].pid)

    def kill(self, trainer: Trainer) -> None:
        """Kill the first pilot of those that live, which trains ``trainer``."""
        agent = self.agents[self._killed]
        self._killed += 1
        trainer.killed |= {f"steps.{worker.pid}" for worker in self.pool.workers(agent)}
        self.pool.kill_tree(agent)

    @contextmanager
    def training(self, sync: str = "", nodes: int = NODES) -> Iterator[Trainer]:
        """Train, and synchronise as ``sync`` says; yields when all nodes do steps together, with the limits of their
        cores from then on.
        """
        folder = Path(tempfile.mkdtemp(dir=self.pool.folder))
        options = ("--max-nodes", str(nodes), *self.pool.gains())
        given = ["--folder", str(folder), "--sync", sync]
        trainer = Trainer(self.pool.submit(_code(folder), *given, options=options), folder)
        try:
            self.limit(_STARTING)
            self.until(lambda: bool(trainer.newest(nodes)))
            self.limit(self.cores)
            yield trainer
        except TimeoutError:
            raise SystemExit(
                f"not within {_DEADLINE_S:g} s; {self.pool.pilot('explain', trainer.name).stdout}"
            ) from None
        finally:
            self.pool.pilot("cancel", trainer.name, check=False)
            self.pool.pilot("wait", trainer.name, check=False)

    def limit(self, cores: float) -> None:
        """Give each node so many of this machine's cores at most."""
        for one in self.limits:
            one.limit(cores)

    def until(self, reached: Callable[[], bool]) -> Moment:
        """Wait for ``reached``; return that moment, or raise :class:`TimeoutError`."""
        deadline_s = time.monotonic() + _DEADLINE_S
        while not reached():
            if time.monotonic() > deadline_s:
                raise TimeoutError
            time.sleep(_LOOK_S)
        return self.now()

    def now(self) -> Moment:
        """Return this moment."""
        return Moment(time.monotonic(), sum(self.lan.sent_bytes(number + 1) for number in range(len(self.agents))))


@contextmanager
def slow_pool(mbit_s: float, delay_s: float, cores: float) -> Iterator[SlowPool]:
    """A pool of ``NODES`` pilots, each with ``cores`` of this machine, on a network of this speed."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        limits = stack.enter_context(quotas([_STARTING] * (NODES + SPARE)))
        lan = SlowLan(mbit_s, delay_s)
        stack.callback(lan.close)
        pool = _Site(folder, address=lan.address)
        stack.callback(pool.end)
        pool.up()
        made = SlowPool(pool, lan, limits, cores)
        for _ in range(NODES):
            made.add()
        pool.until_pilots(NODES)
        yield made
