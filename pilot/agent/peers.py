"""Finds the agents of a group that cannot be reached from here.

MPI_Init waits for ever for a node that it cannot reach, and does not report which. If only the link between two nodes
fails, or one direction of it, the coordinator hears both. So each agent listens on the interface of its ranks, and some
time after a group was introduced each member sends every other :data:`PROBE_BYTES`, enough to find a link that passes
only small packets, and waits for an answer.

Anybody may connect, so received bytes have no meaning, and the :class:`~pilot.protocol.gate.Gate` bounds the number and
duration of connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pilot.core.errors import PilotError
from pilot.protocol.gate import OUT_OF, Gate
from pilot.protocol.wire import GroupAddresses, PeersUnreached

AFTER_S = 10.0
"""Most groups have formed by then."""

LIMIT_S = 5.0
ROUNDS = 6
AT_ONCE = 32
PROBE_BYTES = 1 << 16
PATIENCE_S = 0.1
"""How long a connection may take while others wait: a peer sends all at once."""

_ANSWER = b"."
_ignored = bytearray(PROBE_BYTES)


class Peers:
    """Construct it in a running event loop.

    Parameters
    ----------
    address : of the interface of this node's ranks
    """

    def __init__(self, address: str, emit: Callable[[PeersUnreached], None]) -> None:
        self._address = address
        self._emit = emit
        self._gate: Gate[_Asker] | None = None
        self._probes: dict[str, tuple[int, asyncio.Task[None]]] = {}

    @property
    def endpoint(self) -> str:
        """``host:port``, where the others reach this agent."""
        assert self._gate is not None
        return f"{self._address}:{self._gate.port}"

    def listen(self, port: int = 0) -> None:
        """Answer the others from now on; :class:`PilotError` if that is not possible here."""
        try:
            gate = self._gate = Gate[_Asker](self._address, port, limit_s=LIMIT_S, patience_s=PATIENCE_S)
        except OSError as error:
            raise PilotError(f"cannot listen on {self._address}, the ranks' interface: {error.strerror}") from None
        gate.start(lambda: _Asker(gate))

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
        if self._gate is not None:
            self._gate.close()
            for asker in list(self._gate.clients):
                asker.drop("")

    async def _probe(self, group: GroupAddresses) -> None:
        reported = list[int]()
        for _ in range(ROUNDS):
            await asyncio.sleep(AFTER_S)
            if (now := await _unreached(group.endpoints)) != reported:
                self._emit(PeersUnreached(group.trainer, group.generation, now))
            if not now:
                return
            reported = now


async def _unreached(endpoints: Sequence[str]) -> list[int]:
    """Return the ranks that do not answer in time."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def answers(endpoint: str) -> bool:
        async with turn:
            try:
                async with asyncio.timeout(LIMIT_S):
                    return await _asked(endpoint)
            except OverflowError:  # no such port exists
                return False
            except OSError as error:  # no answer in time is one, too
                return error.errno in OUT_OF  # a shortage here proves nothing about the other one

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


class _Asker(asyncio.BufferedProtocol):
    """A connection of an agent, or of anybody else: all :data:`PROBE_BYTES` are answered, less is not."""

    def __init__(self, gate: Gate[_Asker]) -> None:
        self._gate = gate
        self._transport: asyncio.Transport | None = None
        self._dropped = False
        self._missing_bytes = PROBE_BYTES

    def drop(self, reason: str) -> None:  # noqa: ARG002  # the gate's signature
        """Hang up."""
        self._dropped = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._dropped:
            transport.abort()

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002  # asyncio's signature
        """One buffer for all connections, which nobody reads."""
        return _ignored

    def buffer_updated(self, count: int) -> None:
        """``count`` bytes arrived."""
        self._missing_bytes -= count
        if self._missing_bytes <= 0:
            assert self._transport is not None
            self._transport.write(_ANSWER)
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        """The connection is closed."""
        self._gate.gone(self)
