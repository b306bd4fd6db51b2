"""The nodes of a play: pilots of a test plane, each with a network of its own where root can make one."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

import psutil

from tests.between import script
from tests.chaos.network import INTERFACE, Lan
from tests.integration.plane import Node, Plane
from tests.integration.rank_processes import start_rails

_STACKS_S = 1.0


@dataclass
class Host:
    """A node: its training processes, each of them a :class:`~tests.integration.plane.Node` of the plane."""

    number: int
    workers: list[Node]

    @property
    def name(self) -> str:
        return "+".join(worker.name for worker in self.workers)

    @property
    def alive(self) -> bool:
        """Whether all of its training processes live."""
        return all(worker.alive for worker in self.workers)

    def ended_rank(self, generation: int) -> bool:
        """Return whether its rank process of a generation has ended by an error."""
        process = self.workers[0].ranks.get(generation)
        return process is not None and process.poll() not in (None, 0)


class Stage(Plane):
    """A plane whose nodes are hosts; ``lan``: the networks that they are in."""

    def __init__(self, folder: Path, lan: Lan | None, *arguments: str, **options: Any) -> None:
        super().__init__(folder, Path(script.__file__), str(folder), *arguments, **options)
        self.lan = lan
        self.interface = INTERFACE if lan else "lo"
        self.hosts: list[Host] = []
        self._doomed: set[str] = set()
        self._killed: set[str] = set()

    def start_hosts(self, count: int) -> list[Host]:
        """Start hosts, and wait until their workers are warm."""
        first = len(self.hosts)
        if self.lan is not None:
            for number in range(first, first + count):
                (path,) = (part.removeprefix("--net=") for part in self.lan.port(number) if part.startswith("--net="))
                for local in range(self.ranks_per_node):
                    (self.folder / f"network-n{number * self.ranks_per_node + local}").symlink_to(path)
        workers = self.start(count * self.ranks_per_node)
        started = [
            Host(first + number, workers[number * self.ranks_per_node : (number + 1) * self.ranks_per_node])
            for number in range(count)
        ]
        self.hosts += started
        return started

    def form_hosts(self, hosts: Sequence[Host], *, switch: bool) -> int:
        """Order the next generation, and do not wait for it."""
        return self.form([worker for host in hosts for worker in host.workers], switch=switch, wait=False)

    def kill_host(self, host: Host) -> None:
        """SIGKILL everything on a host."""
        self._doomed |= {worker.name for worker in host.workers}
        for worker in host.workers:
            self.kill(worker)

    def kill_worker(self, worker: Node) -> None:
        """SIGKILL one training process; its host is to be killed when that is noticed."""
        host = next(host for host in self.hosts if worker in host.workers)
        self._doomed |= {other.name for other in host.workers}
        worker.signal(signal.SIGKILL)

    def kill(self, node: Node) -> None:
        """SIGKILL everything on a node, once: the ids of processes that have ended may be those of others."""
        if node.name not in self._killed:
            self._killed.add(node.name)
            super().kill(node)

    def _start_rank(self, node: Node) -> list[tuple[Popen[bytes], Any]]:
        number = int(node.name[1:]) // self.ranks_per_node
        prefix = self.lan.port(number) if self.lan is not None else ()
        with node.log.open("ab") as output:
            return start_rails(self.rails, output, self.interface, prefix)

    def _assert_ended_well(self, node: Node) -> None:
        if node.name not in self._doomed:
            super()._assert_ended_well(node)

    def print_stacks(self) -> None:
        """Have all living workers print the stacks of their threads into their logs."""
        for node in self.nodes:
            if node.alive and node.process.is_alive():
                node.signal(signal.SIGUSR1)
                node.signal(signal.SIGCONT)
        time.sleep(_STACKS_S)

    def texts(self) -> str:
        """Return all logs, of stacks only the frames that are ours."""
        lines = []
        for node in self.nodes:
            lines.append(f"--- {node.log.name}")
            its = node.log.read_text(errors="replace").splitlines()
            lines += [line for line in its if not line.startswith("  File") or "/pilot/" in line or "/between/" in line]
        return "\n".join(lines)

    def leftovers(self) -> list[str]:
        """Return what is left of a play that has ended, and kill it."""
        ours = [node.process.pid for node in self.nodes if node.process.is_alive()]
        ours += [process.pid for node in self.nodes for process in node.ranks.values() if process.poll() is None]
        ours += self._in_networks()
        left = []
        for pid in sorted({pid for pid in ours if pid is not None}):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                left.append(f"process {pid}: {' '.join(process.cmdline())}")
                process.kill()
        return left

    def _in_networks(self) -> list[int]:
        """Return the processes that are in the hosts' networks."""
        if self.lan is None:
            return []
        inodes = {path.stat().st_ino for path in self.folder.glob("network-*")}
        found = []
        for process in psutil.process_iter():
            with suppress(OSError):
                if Path(f"/proc/{process.pid}/ns/net").stat().st_ino in inodes:
                    found.append(process.pid)
        return found


class Fault:
    """A fault that lasts until it is undone."""

    def __init__(self, host: Host, do: Callable[[], None], undo: Callable[[], None]) -> None:
        self.host, self._undo = host, undo
        self.began_s = time.monotonic()
        with suppress(psutil.NoSuchProcess):
            do()

    def undo(self) -> None:
        """Undo it, if its node still lives."""
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            self._undo()


def stopped(host: Host, pid: int | None) -> Fault:
    """Stop a process."""
    process = psutil.Process(pid)
    return Fault(host, process.suspend, process.resume)


def cut(lan: Lan, deed: str, host: Host, others: Sequence[Host]) -> Fault:
    """Cut the network of a host: both directions, what it sends, what it gets, or what it sends to one other one."""
    if deed.startswith("cut for") or deed == "cut":
        return Fault(host, lambda: lan.cut(host.number), lambda: lan.mend(host.number))
    far = [other.number for other in others if other is not host]
    pairs = {
        "cut out": [(host.number, other) for other in far],
        "cut in": [(other, host.number) for other in far],
        "cut pair": [(host.number, other) for other in far[:1]],
    }[deed]

    def do() -> None:
        for pair in pairs:
            lan.lose(*pair)

    def undo() -> None:
        for pair in pairs:
            lan.find(*pair)

    return Fault(host, do, undo)
