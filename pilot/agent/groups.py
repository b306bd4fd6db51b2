"""The rank processes of this node: one per generation (and rail), and a warm one waiting for the next order.

A rank process is killed by its process id; what MPICH leaves in /dev/shm is removed by its name, which is known before
the process gets its order (:mod:`pilot.comm.mpich`).
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pilot.agent.fork_server import ALLOCATOR, THREAD_VARIABLES
from pilot.agent.ranks import NodeRanks
from pilot.agent.shortage import tolerated
from pilot.agent.vocabulary import RankEnded
from pilot.agent.workdir import Workdir
from pilot.comm import mpich
from pilot.comm.rank_order import RankOrder
from pilot.core.errors import ProtocolError
from pilot.io import proc
from pilot.io.wire import JoinGroup, RankAddress, RankJoined

_CLOSE_LIMIT_S = 2.0
_SPARE_AFTER_S = 2.0
"""Delay before the next rank process warms up after one was taken, so that the forming group gets the CPU first."""

Key = tuple[str, int]


class Groups:
    """``emit`` is called with what ranks have put, when they have joined, and with ends that were not ordered here.
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
        """The coordinator has said how many rails nodes have; prepare them for the next order."""
        self._rails = rails
        if self._spare is not None and self._spare.rails != rails:
            self._spare.kill()
            self._spare = None
        self.warm_up()

    def warm_up(self) -> None:
        """Prepare a rank process for the next order, on each rail."""
        if self._spare is None and not self._closing:
            with tolerated():  # the next order starts one, and reports what is wrong
                self._spare = self._start()

    def join(self, message: JoinGroup, sockets: Sequence[Path]) -> None:
        """Start a rank for the worker whose processes listen on ``sockets``; OSError if no file can be written here."""
        key = (message.trainer, message.generation)
        space = f"pilot_{secrets.token_hex(8)}"
        segment = mpich.segment_name(space, message.rank)
        self._workdir.record_segments([*self._segments.values(), segment])
        rank, self._spare = self._spare or self._start(), None
        self._ranks[key], self._segments[rank] = rank, segment
        rails = rank.rails if message.size > 1 else 1
        paths = [str(path) for path in sockets]
        order = RankOrder(message.generation, message.rank, message.size, paths, rails=rails)
        rank.begin(
            order,
            space,
            entered=lambda puts: self._emit(RankAddress(*key, dict(puts), self.endpoint)),
            joined=lambda: self._emit(RankJoined(*key)),
        )
        asyncio.get_running_loop().call_later(_SPARE_AFTER_S, self.warm_up)

    def introduce(self, trainer: str, generation: int, table: Mapping[str, str]) -> None:
        """Pass on ``table``, which all ranks of the generation have put. A rank that cannot accept it is killed."""
        rank = self._ranks.get((trainer, generation))
        if rank is None:
            return
        try:
            rank.introduce(table)
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
            self._spare = None  # the next order starts one, and reports what is wrong
        if (segment := self._segments.pop(rank, None)) is not None:
            proc.unlink_segments([segment])
            with suppress(OSError):  # then the earlier list stays, which names it, too
                self._workdir.record_segments(self._segments.values())
        for key in [key for key, living in self._ranks.items() if living is rank]:
            del self._ranks[key]
            self._emit(RankEnded(*key, status, rank.tail))
