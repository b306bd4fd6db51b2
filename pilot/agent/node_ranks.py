"""The rank processes of this node in one generation: one per rail (:mod:`pilot.comm.rails`), which end together."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence

import msgspec

from pilot.agent.ranks import Puts, RankProcess
from pilot.comm.mpich import on_interface
from pilot.comm.rank_order import WORKER_GONE, RankOrder

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
