"""The way to the coordinator, through its absences: connect, register, heartbeat, register again.

What is sent while there is no coordinator waits, and goes out after the next ``Welcome``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

import zmq
import zmq.asyncio

from pilot.agent.coordinator_link import CoordinatorLink, HandshakeFailed, Unreachable
from pilot.core.errors import UserError
from pilot.io import wire
from pilot.io.connection import Connection

log = logging.getLogger(__name__)

_TRY_S = 10.0
_RETRY_S = 1.0


class CoordinatorClient:
    """The agent's connection as long as the agent lives.

    Parameters
    ----------
    hello : makes the message with which it registers, each time
    take : called with each message from the coordinator
    lost : called when a connection closed
    """

    def __init__(
        self,
        connection: Connection,
        hello: Callable[[], wire.Hello],
        take: Callable[[wire.ToAgent], None],
        lost: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._hello = hello
        self._take = take
        self._lost = lost
        self._keys = zmq.curve_keypair()
        self._context = zmq.asyncio.Context()
        self._link: CoordinatorLink | None = None
        self._welcome: wire.Welcome | None = None
        self._unsent: deque[wire.Message] = deque()
        self.joined = asyncio.Event()

    async def run(self) -> None:
        """Stay connected until cancelled; UserError where the coordinator does not take the key."""
        while True:
            self._link = await self._connect()
            self._link.send(self._hello())
            beats = asyncio.create_task(self._beat())
            try:
                await self._link.run(self._taken)
            finally:
                beats.cancel()
                self._drop_link()
            log.warning("the connection to the coordinator closed; connecting again")
            self._lost()

    def send(self, message: wire.Message) -> None:
        """Send now, or as soon as the coordinator is there again."""
        if self._link is not None and self._welcome is not None:
            self._link.send(message)
        else:
            self._unsent.append(message)

    def close(self) -> None:
        """Close for good; what was sent still goes out, for a second at most."""
        self._drop_link()
        self._context.term()

    async def _connect(self) -> CoordinatorLink:
        while True:
            link = CoordinatorLink(self._context, self._connection, self._keys)
            try:
                await link.open(_TRY_S)
            except (Unreachable, HandshakeFailed) as failure:
                link.close()
                if isinstance(failure, HandshakeFailed):
                    await self._not_taken()
            except BaseException:
                link.close()
                raise
            else:
                return link

    async def _not_taken(self) -> None:
        """At first it is our file that is wrong; later it may be another server on a port that ours left."""
        endpoint = self._connection.endpoint
        if not self.joined.is_set():
            raise UserError(
                f"{endpoint} does not take the key in the connection file; copy the file of the running pool"
            )
        await asyncio.sleep(_RETRY_S)

    def _taken(self, message: wire.ToAgent) -> None:
        if isinstance(message, wire.Welcome):
            self._welcome = message
            self.joined.set()
        self._take(message)
        while self._welcome is not None and self._link is not None and self._unsent:
            self._link.send(self._unsent.popleft())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._welcome.heartbeat_s if self._welcome is not None else _RETRY_S)
            if self._link is not None and self._welcome is not None:
                self._link.send(wire.Heartbeat(time.monotonic()))

    def _drop_link(self) -> None:
        self._welcome = None
        if self._link is not None:
            self._link.close()
            self._link = None
