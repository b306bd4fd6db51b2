"""Which agents of a group can be reached from here.

MPI_Init waits for ever for a node that it cannot reach, and does not say for which. If only the link between two nodes
fails, or one direction of it, the coordinator hears both. So each agent listens on the interface of its ranks, and some
time after a group was introduced each member sends every other :data:`PROBE_BYTES`, enough to find a link that passes
only small packets, and waits for an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pilot.agent.vocabulary import PeersUnreached
from pilot.core.errors import PilotError
from pilot.io.wire import GroupAddresses

AFTER_S = 10.0
"""Most groups have formed by then."""

LIMIT_S = 5.0
ROUNDS = 6
AT_ONCE = 32
PROBE_BYTES = 1 << 16
_ANSWER = b"."


class Peers:
    """Construct it in a running event loop.

    Parameters
    ----------
    address : of the interface of this node's ranks
    """

    def __init__(self, address: str, emit: Callable[[PeersUnreached], None]) -> None:
        self._address = address
        self._emit = emit
        self._server: asyncio.Server | None = None
        self._probes: dict[str, tuple[int, asyncio.Task[None]]] = {}

    @property
    def endpoint(self) -> str:
        """``host:port``, where the others reach this agent."""
        assert self._server is not None
        return f"{self._address}:{self._server.sockets[0].getsockname()[1]}"

    async def listen(self) -> None:
        """Answer the others from now on; :class:`PilotError` if that is not possible here."""
        try:
            self._server = await asyncio.start_server(_answer, self._address, 0)
        except OSError as error:
            raise PilotError(f"cannot listen on {self._address}, the ranks' interface: {error.strerror}") from None

    def introduced(self, group: GroupAddresses) -> None:
        """Try to reach the members of ``group``, unless it has been introduced before."""
        generation, probe = self._probes.get(group.trainer, (0, None))
        if generation == group.generation:
            return
        if probe is not None:
            probe.cancel()
        task = asyncio.get_running_loop().create_task(self._probe(group))
        self._probes[group.trainer] = (group.generation, task)

    async def close(self) -> None:
        """Stop listening and probing."""
        for _, probe in self._probes.values():
            probe.cancel()
        await asyncio.gather(*(probe for _, probe in self._probes.values()), return_exceptions=True)
        if self._server is not None:
            self._server.close()

    async def _probe(self, group: GroupAddresses) -> None:
        told = list[int]()
        for _ in range(ROUNDS):
            await asyncio.sleep(AFTER_S)
            if (now := await _unreached(group.endpoints)) != told:
                self._emit(PeersUnreached(group.trainer, group.generation, now))
            if not now:
                return
            told = now


async def _unreached(endpoints: Sequence[str]) -> list[int]:
    """The ranks of those that do not answer in time."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def answers(endpoint: str) -> bool:
        async with turn:
            try:
                async with asyncio.timeout(LIMIT_S):
                    return await _asked(endpoint)
            except (OSError, OverflowError):  # no answer in time is one, too; no such port exists
                return False

    answered = await asyncio.gather(*map(answers, endpoints))
    return [rank for rank, answer in enumerate(answered) if not answer]


async def _asked(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(bytes(PROBE_BYTES))
        await writer.drain()
        return await reader.read(len(_ANSWER)) == _ANSWER
    finally:
        writer.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Anybody may connect, so nothing that is read has a meaning, and nobody is listened to for long."""
    try:
        async with asyncio.timeout(LIMIT_S):
            await reader.readexactly(PROBE_BYTES)
        writer.write(_ANSWER)
    except (OSError, EOFError):
        pass
    finally:
        writer.close()
