"""An agent finds out which members of its group it cannot reach."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pilot.agent import peers
from pilot.agent.peers import Peers
from pilot.core.errors import PilotError
from pilot.protocol.wire import GroupAddresses, PeersUnreached

LOCAL = "127.0.0.1"
DEADLINE_S = 30.0


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "AFTER_S", 0.05)
    monkeypatch.setattr(peers, "LIMIT_S", 0.5)


class Agent:
    """One agent's part."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[PeersUnreached] = asyncio.Queue()
        self.peers = Peers(LOCAL, self.told.put_nowait)

    async def hears(self) -> PeersUnreached:
        async with asyncio.timeout(DEADLINE_S):
            return await self.told.get()


@asynccontextmanager
async def agents(count: int) -> AsyncIterator[list[Agent]]:
    made = [Agent() for _ in range(count)]
    for agent in made:
        agent.peers.listen()
    try:
        yield made
    finally:
        for agent in made:
            await agent.peers.close()


def group(*endpoints: str, generation: int = 1) -> GroupAddresses:
    return GroupAddresses("t", generation, {}, list(endpoints))


async def _swallows(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    while await reader.read(1 << 16):
        pass


def test_who_refuses_and_who_never_answers_is_not_reached_and_who_answers_is() -> None:
    async def scene() -> None:
        silent = await asyncio.start_server(_swallows, LOCAL, 0)
        async with agents(2) as (one, other):
            refusing, mute = f"{LOCAL}:1", f"{LOCAL}:{silent.sockets[0].getsockname()[1]}"
            nowhere = f"{LOCAL}:99999"
            one.peers.introduced(group(one.peers.endpoint, refusing, other.peers.endpoint, mute, nowhere))
            assert await one.hears() == PeersUnreached("t", 1, [1, 3, 4])
        silent.close()

    asyncio.run(scene())


def test_an_agent_that_cannot_listen_fails_in_one_line() -> None:
    with pytest.raises(PilotError, match=r"cannot listen on 203\.0\.113\.7, the ranks' interface: "):
        Peers("203.0.113.7", print).listen()


def test_a_peer_that_is_reached_again_is_reported() -> None:
    async def scene() -> None:
        async with agents(2) as (one, other):
            endpoint = other.peers.endpoint
            await other.peers.close()
            one.peers.introduced(group(one.peers.endpoint, endpoint))
            assert await one.hears() == PeersUnreached("t", 1, [1])
            back = Peers(LOCAL, print)
            back.listen(int(endpoint.rpartition(":")[2]))
            assert await one.hears() == PeersUnreached("t", 1, [])
            await back.close()

    asyncio.run(scene())


def test_a_later_generation_replaces_the_probe_of_the_earlier_one() -> None:
    async def scene() -> None:
        async with agents(1) as (one,):
            for generation in (1, 1, 2):
                one.peers.introduced(group(f"{LOCAL}:1", generation=generation))
            assert await one.hears() == PeersUnreached("t", 2, [0])

    asyncio.run(scene())


def test_a_stranger_who_sends_little_or_nothing_is_hung_up_on() -> None:
    async def scene() -> None:
        async with agents(1) as (one,), asyncio.timeout(DEADLINE_S):
            host, port = one.peers.endpoint.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await reader.read() == b""
            writer.close()

    asyncio.run(scene())
