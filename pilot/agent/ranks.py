"""The rank processes of this node in one generation: at first warm, then its ranks; one per rail
(:mod:`pilot.comm.rails`), which end together.

The agent is its PMI server. What the rank puts is sent to the coordinator, which returns what all ranks have put.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial

import msgspec

from pilot.agent.guardian import NOTICES
from pilot.comm.mpich import on_interface
from pilot.comm.pmi import PmiServer
from pilot.comm.rank_order import WORKER_GONE, RankOrder, encode
from pilot.core.errors import ProtocolError
from pilot.io.system import die_with_parent

Puts = dict[str, str]

_TAIL_LINES = 20
_EXEC_FAILED = 127
_FAILED = 1
_PIECE_BYTES = 1 << 16


class RankProcess:
    """Construct it in a running event loop; :meth:`run` starts it.

    Parameters
    ----------
    environment : its whole environment
    rails : sockets to other rank processes of the node; owned from now on
    """

    def __init__(self, environment: Mapping[str, str], rails: Sequence[socket.socket] = ()) -> None:
        self._environment = environment
        self._rails = rails
        self._end, self._theirs = socket.socketpair()
        self._end.setblocking(False)
        self._process: asyncio.subprocess.Process | None = None
        self._killed = self._failed = False
        self._server: PmiServer | None = None
        self._entered: Callable[[Puts], None] = lambda _: None
        self._joined: Callable[[], None] = lambda: None
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)

    @property
    def pid(self) -> int:
        """0 before it has been started."""
        return 0 if self._process is None else self._process.pid

    @property
    def tail(self) -> str:
        """The last lines that it printed."""
        return "\n".join(self._tail)

    async def run(self) -> int:
        """Start it and wait for its end; returns the exit status, or minus the signal."""
        try:
            status = await self._run()
            return _FAILED if self._failed else status
        except OSError as error:
            self._tail.append(f"{sys.executable}: {error.strerror}")
            return _EXEC_FAILED
        finally:
            self._hang_up()

    def begin(self, order: RankOrder, space: str, entered: Callable[[Puts], None], joined: Callable[[], None]) -> None:
        """Become a rank. ``space`` is the name of its node's key-value space; ``entered`` is called with its puts at
        each barrier, ``joined`` when it, the group's first rank, says that MPI is up on all."""
        self._server = PmiServer(order.of_world[1], space, order.rails)
        self._entered, self._joined = entered, joined
        asyncio.get_running_loop().add_reader(self._end, self._hear)
        self._say(encode(order))

    def introduce(self, table: Mapping[str, str]) -> None:
        """All ranks have entered the barrier; :class:`ProtocolError` if this one has not."""
        if self._server is None:
            raise ProtocolError("a rank process without an order has no peers")
        self._say(self._server.open(table))

    def kill(self) -> None:
        """Kill it; :meth:`run` returns soon."""
        self._killed = True
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    def fail(self, reason: str) -> None:
        """Kill it, and report ``reason`` as if it were its last output."""
        self._tail.append(reason)
        self._failed = True
        self.kill()

    async def _run(self) -> int:
        with ExitStack() as given:
            passed = [given.enter_context(end).fileno() for end in (self._theirs, *self._rails)]
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "pilot.comm.rank", *map(str, passed)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=self._environment,
                pass_fds=passed,
                start_new_session=True,  # on a shared node the kernel gives each session its share
                preexec_fn=partial(_live_with, os.getpid()),
            )
        if self._killed:
            self.kill()
        assert process.stdout is not None
        async for line in process.stdout:
            self._tail.append(line.decode(errors="replace").rstrip())
        return await process.wait()

    def _hear(self) -> None:
        try:
            received = self._end.recv(_PIECE_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            received = b""
        if not received:
            asyncio.get_running_loop().remove_reader(self._end)
            return
        assert self._server is not None
        waited, had_joined = self._server.in_barrier, self._server.joined
        try:
            self._say(self._server.hear(received))
        except ProtocolError as error:
            self.fail(str(error))
        if self._server.in_barrier and not waited:
            self._entered(dict(self._server.puts))
        if self._server.joined and not had_joined:
            self._joined()

    def _say(self, text: bytes) -> None:
        """Send to the rank. Only one answer is outstanding at a time, so there is always space; a rank that has ended
        gets none."""
        with suppress(BrokenPipeError):
            self._end.sendall(text)

    def _hang_up(self) -> None:
        asyncio.get_running_loop().remove_reader(self._end)
        self._end.close()


def _live_with(agent: int) -> None:
    """Before exec: ignore notices, on which only the agent acts, and die with the agent."""
    for notice in NOTICES:
        signal.signal(notice, signal.SIG_IGN)
    die_with_parent(agent)


END_LIMIT_S = 5.0
"""How long the others may take once one has exited normally (all leave MPI together), or for lack of another."""

_FOLLOWS = {0, WORKER_GONE}
"""Exit statuses that follow from another's end, and so are not its cause."""


class NodeRanks:
    """Construct it in a running event loop; :meth:`run` starts them.

    Parameters
    ----------
    environment : of the processes
    rails : how many
    interfaces : assigned to them in turn
    """

    def __init__(self, environment: Mapping[str, str], rails: int, interfaces: Sequence[str]) -> None:
        self.rails = rails
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(rails - 1)]
        ends = [[ours for ours, _ in pairs], *([theirs] for _, theirs in pairs)]
        self._processes = [
            RankProcess({**environment, **on_interface(interfaces[rail % len(interfaces)])}, its)
            for rail, its in enumerate(ends)
        ]
        self._ordered = self._processes
        self._puts: list[Puts] = []
        self._entered: Callable[[Puts], None] = lambda _: None

    @property
    def pids(self) -> list[int]:
        """Process ids of those that have been started."""
        return [process.pid for process in self._processes if process.pid]

    @property
    def tail(self) -> str:
        """The last lines that they printed."""
        return "\n".join(filter(None, (process.tail for process in self._processes)))

    async def run(self) -> int:
        """Start them and wait for all to end; returns the exit status, or minus the signal, of the first that
        failed."""
        lives = {asyncio.create_task(process.run()): process for process in self._processes}
        done, others = await asyncio.wait(lives, return_when=asyncio.FIRST_COMPLETED)
        ended = {task.result() for task in done}
        if ended <= _FOLLOWS and (others := {life for life in others if lives[life] in self._ordered}):
            done, _ = await asyncio.wait(others, timeout=END_LIMIT_S)
            ended |= {task.result() for task in done}
        self.kill()
        await asyncio.wait(lives)
        return next(iter(ended - _FOLLOWS), max(ended))

    def begin(self, order: RankOrder, space: str, entered: Callable[[Puts], None], joined: Callable[[], None]) -> None:
        """Become the rails of a node: as many as in ``order``, the others stay idle. See :meth:`RankProcess.begin`."""
        self._entered, self._ordered = entered, self._processes[: order.rails]
        for rail, process in enumerate(self._ordered):
            process.begin(msgspec.structs.replace(order, rail=rail), space, self._one_entered, joined)

    def introduce(self, table: Mapping[str, str]) -> None:
        """See :meth:`RankProcess.introduce`."""
        for process in self._ordered:
            process.introduce(table)

    def kill(self) -> None:
        """Kill them; :meth:`run` returns soon."""
        for process in self._processes:
            process.kill()

    def fail(self, reason: str) -> None:
        """See :meth:`RankProcess.fail`."""
        self._processes[0].fail(reason)
        self.kill()

    def _one_entered(self, puts: Puts) -> None:
        """The node is in the barrier when each of its rails is."""
        self._puts.append(puts)
        if len(self._puts) == len(self._ordered):
            table = {key: value for one in self._puts for key, value in one.items()}
            self._puts = []
            self._entered(table)
