"""The processes of MPI groups on this node: mpiexec where it leads, a proxy and its rank process per generation.

hydra gives each rank process its own session, and a proxy that is killed leaves it running. So a generation is killed
by tree and by the marks that its processes carry, and what MPICH leaves in /dev/shm is removed by the names that the
rank processes announced, or were seen to have mapped, never by pattern.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from launchers import hydra
from pilot.agent.fork_server import THREAD_VARIABLES
from pilot.agent.vocabulary import GroupProcessEnded, ProxiesNamed, Role
from pilot.agent.workdir import Workdir, remove_segments
from pilot.io import proc, wire
from pilot.io.prctl import die_with_parent

MARK = "PILOT_GROUP"

_TAIL_LINES = 20
_EXEC_FAILED = 127
_CLOSE_LIMIT_S = 2.0
_YOUNG_LOOK_S = 0.02
_YOUNG_LOOKS = 500

Key = tuple[str, int]


@dataclass(slots=True)
class _Run:
    """One mpiexec or proxy. ``ranks`` are the children of a proxy, ``segments`` what they have mapped."""

    key: Key
    role: Role
    process: asyncio.subprocess.Process | None = None
    killed: bool = False
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    ranks: list[int] = field(default_factory=list)
    segments: set[str] = field(default_factory=set)


class Groups:
    """``emit`` is told of proxy commands and of ends that were not ordered here.

    Parameters
    ----------
    interface : that mpiexec and the ranks bind to; all pilots are on one machine where it is the loopback
    provider : libfabric's
    """

    def __init__(
        self, workdir: Workdir, interface: str, provider: str, emit: Callable[[ProxiesNamed | GroupProcessEnded], None]
    ) -> None:
        self._workdir = workdir
        self._interface = interface
        self._fabric = hydra.environment(provider=provider, one_machine=interface == "lo")
        self._emit = emit
        self._runs: list[_Run] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def lead(self, order: wire.LeadGroup) -> None:
        """Run mpiexec, which names the proxies and then leads them."""
        command = hydra.mpiexec_command(order.size, order.generation, interface=self._interface)
        run = _Run((order.trainer, order.generation), Role.MPIEXEC)
        self._start(run, command, {})

    def join(self, order: wire.JoinGroup, sockets: Sequence[Path]) -> None:
        """Run the proxy, which starts the rank process that connects to the ``sockets`` of the worker's processes."""
        run = _Run((order.trainer, order.generation), Role.PROXY)
        paths = os.pathsep.join(map(str, sockets))
        more = {"PILOT_WORKER_SOCKETS": paths, "PILOT_SEGMENTS": str(self._workdir.segments)}
        self._start(run, shlex.split(order.command), more)

    def kill(self, trainer: str, generation: int) -> None:
        """Kill what runs of the generation here, and remove its segments."""
        self.observe()
        for run in [run for run in self._runs if run.key == (trainer, generation)]:
            run.killed = True
            if run.process is not None:
                proc.kill(proc.tree(run.process.pid))
        self._clean((trainer, generation))

    def observe(self) -> None:
        """Note the rank processes and what they have mapped, before one of them is killed by somebody."""
        for run in self._runs:
            if run.role is Role.PROXY and run.process is not None:
                run.ranks = run.ranks or proc.children(run.process.pid)
                run.segments |= {name for pid in run.ranks for name in proc.segments(pid)}
                self._workdir.record_segments(run.segments)

    def ranks(self) -> Iterator[tuple[Key, int]]:
        """The rank processes that were noted."""
        return ((run.key, pid) for run in self._runs for pid in run.ranks)

    def pids(self) -> list[int]:
        """The processes that were started here."""
        return [run.process.pid for run in self._runs if run.process is not None]

    async def close(self) -> None:
        """Kill everything and wait for its end."""
        for key in sorted({run.key for run in self._runs}):
            self.kill(*key)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_LIMIT_S)

    def _start(self, run: _Run, command: Sequence[str], more: dict[str, str]) -> None:
        self._runs.append(run)
        for work in (self._attend(run, command, more), self._meet(run)):
            task = asyncio.get_running_loop().create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _meet(self, run: _Run) -> None:
        """Look often at a young proxy, until its rank process is in MPI: it may be killed soon after."""
        for _ in range(_YOUNG_LOOKS):
            if run.role is not Role.PROXY or run.segments or run not in self._runs:
                return
            await asyncio.sleep(_YOUNG_LOOK_S)
            self.observe()

    async def _attend(self, run: _Run, command: Sequence[str], more: dict[str, str]) -> None:
        """From start to end of one process."""
        try:
            status = await self._execute(run, command, more)
        except OSError as error:
            run.tail.append(f"{command[0]}: {error.strerror}")
            status = _EXEC_FAILED
        self._runs.remove(run)
        if run.role is Role.PROXY:
            self._clean(run.key)
            remove_segments(self._workdir.segments)
        if not run.killed:
            self._emit(GroupProcessEnded(*run.key, run.role, status, "\n".join(run.tail)))

    async def _execute(self, run: _Run, command: Sequence[str], more: dict[str, str]) -> int:
        run.process = process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment(run.key) | more,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        if run.killed:
            process.kill()
        assert process.stdout is not None
        await self._read(run, process.stdout)
        return await process.wait()

    async def _read(self, run: _Run, output: asyncio.StreamReader) -> None:
        printed: list[str] = []
        named = run.role is not Role.MPIEXEC
        async for line in output:
            text = line.decode(errors="replace").rstrip()
            printed.append(text)
            commands = None if named else hydra.proxy_commands(printed)
            if commands is not None:
                named = True
                self._emit(ProxiesNamed(*run.key, tuple(commands)))
            elif named:
                run.tail.append(text)

    def _environment(self, key: Key) -> dict[str, str]:
        mark, _, name = self._workdir.mark.partition("=")
        ours = {mark: name, MARK: _group_name(key), "PYTHONSAFEPATH": "1"} | dict.fromkeys(THREAD_VARIABLES, "1")
        return dict(os.environ) | self._fabric | ours

    def _clean(self, key: Key) -> None:
        """Kill rank processes whose proxy is gone; mpiexec and living proxies are left alone."""
        own = set(self.pids()) - {run.process.pid for run in self._runs if run.process and run.killed}
        found = proc.marked(self._workdir.mark, f"{MARK}={_group_name(key)}")
        proc.kill(process for process in found if process.pid not in own)


def _group_name(key: Key) -> str:
    trainer, generation = key
    return f"{trainer}/{generation}"
