"""The rank processes of this node: one per generation (and rail, :mod:`pilot.comm.rails`; those of a generation end
together), and a warm one waiting for the next order.

The agent is a rank's PMI server. The rank's puts are sent to the coordinator, which returns those of all ranks. A rank
process is killed by its process id; MPICH's segment in /dev/shm is removed by its name, which is known before the
process gets its order (:mod:`pilot.comm.mpich`).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import msgspec

from pilot.agent.events_effects import RankEnded
from pilot.agent.fork_server import ALLOCATOR, THREAD_VARIABLES
from pilot.agent.guardian import NOTICES
from pilot.agent.shortage import tolerated
from pilot.agent.workdir import Workdir
from pilot.comm import mpich
from pilot.comm.mpich import on_interface
from pilot.comm.pmi import PmiServer
from pilot.comm.rank_order import WORKER_GONE, RankOrder, encode
from pilot.core.errors import ProtocolError
from pilot.host import proc
from pilot.host.system import die_with_parent
from pilot.protocol.wire import GroupAddresses, JoinGroup, RankAddress, RankJoined

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
        each barrier, ``joined`` when it, the group's first rank, reports that MPI is up on all."""
        self._server = PmiServer(order.of_world[1], space, order.rails)
        self._entered, self._joined = entered, joined
        asyncio.get_running_loop().add_reader(self._end, self._receive)
        self._send(encode(order))

    def introduce(self, table: Mapping[str, str]) -> None:
        """Open the barrier, which all ranks have entered; :class:`ProtocolError` if this one has not."""
        if self._server is None:
            raise ProtocolError("a rank process without an order has no peers")
        self._send(self._server.open(table))

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

    def _receive(self) -> None:
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
            self._send(self._server.hear(received))
        except ProtocolError as error:
            self.fail(str(error))
        if self._server.in_barrier and not waited:
            self._entered(dict(self._server.puts))
        if self._server.joined and not had_joined:
            self._joined()

    def _send(self, text: bytes) -> None:
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
"""The time that the others may take once one has exited normally (all leave MPI together), or for lack of another."""

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
        """Become the rails of a node: as many as ``order`` has, the others stay idle. See :meth:`RankProcess.begin`."""
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


_CLOSE_LIMIT_S = 2.0
_SPARE_AFTER_S = 2.0
"""Delay before the next rank process warms up after one was taken, so that the forming group gets the CPU first."""

Key = tuple[str, int]


class Groups:
    """``emit`` is called with the ranks' puts, when they have joined, and with ends that were not ordered here.
    ``endpoint``: where this agent answers others.

    Parameters
    ----------
    interfaces : to which the ranks' ports are bound, one rail after the other
    provider : libfabric's provider
    """

    def __init__(
        self,
        workdir: Workdir,
        interfaces: Sequence[str],
        provider: str,
        emit: Callable[[RankAddress | RankJoined | RankEnded], None],
    ) -> None:
        self.endpoint = ""
        self._workdir = workdir
        mark, _, name = workdir.mark.partition("=")
        variables = mpich.environment(os.environ, interface=None, provider=provider)
        self._interfaces = interfaces
        self._rails = 1
        self._environment = ALLOCATOR | variables | {mark: name} | dict.fromkeys(THREAD_VARIABLES, "1")
        self._emit = emit
        self._spare: NodeRanks | None = None
        self._ranks: dict[Key, NodeRanks] = {}
        self._segments: dict[NodeRanks, str] = {}
        self._tasks: dict[asyncio.Task[None], NodeRanks] = {}
        self._closing = False

    def welcomed(self, rails: int) -> None:
        """Prepare ``rails`` rank processes, the coordinator's number for all nodes, for the next order."""
        self._rails = rails
        if self._spare is not None and self._spare.rails != rails:
            self._spare.kill()
            self._spare = None
        self.warm_up()

    def warm_up(self) -> None:
        """Prepare a rank process for the next order, on each rail."""
        if self._spare is None and not self._closing:
            with tolerated():  # the next order starts one, and reports the problem
                self._spare = self._start()

    def join(self, message: JoinGroup, sockets: Sequence[Path]) -> None:
        """Start a rank for the worker whose processes listen on ``sockets``; OSError if no file can be written here."""
        key = (message.trainer, message.generation)
        space = f"pilot_{secrets.token_hex(8)}"
        segment = mpich.segment_name(space, message.node)
        self._workdir.record_segments([*self._segments.values(), segment])
        rank, self._spare = self._spare or self._start(), None
        self._ranks[key], self._segments[rank] = rank, segment
        rails = rank.rails if message.nodes > 1 else 1
        paths = [str(path) for path in sockets]
        order = RankOrder(message.generation, message.node, message.nodes, paths, rails=rails)
        rank.begin(
            order,
            space,
            entered=lambda puts: self._emit(RankAddress(*key, dict(puts), self.endpoint)),
            joined=lambda: self._emit(RankJoined(*key)),
        )
        asyncio.get_running_loop().call_later(_SPARE_AFTER_S, self.warm_up)

    def introduce(self, group: GroupAddresses) -> None:
        """Pass on the puts of all ranks of a generation. A rank that cannot accept them is killed."""
        if (rank := self._ranks.get((group.trainer, group.generation))) is not None:
            try:
                rank.introduce(group.puts)
            except ProtocolError as error:
                rank.fail(str(error))

    def kill(self, trainer: str, generation: int) -> None:
        """Kill the rank processes of the generation; their segment is removed when they have ended."""
        rank = self._ranks.pop((trainer, generation), None)
        if rank is not None:
            rank.kill()

    def ranks(self) -> Iterator[tuple[Key, int]]:
        """The rank processes that have an order, by process id."""
        return ((key, pid) for key, rank in self._ranks.items() for pid in rank.pids)

    def pids(self) -> list[int]:
        """The processes that were started here."""
        return [pid for rank in self._tasks.values() for pid in rank.pids]

    async def close(self) -> None:
        """Kill everything and wait for its end."""
        self._closing = True
        self._ranks.clear()
        for rank in self._tasks.values():
            rank.kill()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_LIMIT_S)

    def _start(self) -> NodeRanks:
        rank = NodeRanks(self._environment, self._rails, self._interfaces)
        task = asyncio.get_running_loop().create_task(self._attend(rank))
        self._tasks[task] = rank
        task.add_done_callback(self._tasks.pop)
        return rank

    async def _attend(self, rank: NodeRanks) -> None:
        """Attend to one process from its start to its end."""
        status = await rank.run()
        if rank is self._spare:
            self._spare = None  # the next order starts one, and reports the problem
        if (segment := self._segments.pop(rank, None)) is not None:
            proc.unlink_segments([segment])
            with suppress(OSError):  # the earlier list then stays, which names it, too
                self._workdir.record_segments(self._segments.values())
        for key in [key for key, living in self._ranks.items() if living is rank]:
            del self._ranks[key]
            self._emit(RankEnded(*key, status, rank.tail))
