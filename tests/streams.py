"""The wire, controlled by a test: a peer's blocking stream, and a server whose loop runs in a thread."""

from __future__ import annotations

import asyncio
import queue
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from pilot.protocol import wire
from pilot.protocol.connection import Certificate, client_context
from pilot.protocol.framing import Frames, framed
from pilot.protocol.transport import Limits, Link
from pilot.service.agents.server import Listener

DEADLINE_S = 30.0
FREE = Limits(frame_bytes=wire.MAX_FRAME_BYTES, unsent_bytes=1 << 26, rate_per_s=1e6, burst=1e6)


class Stream:
    """Frames over TLS to ``address``. It checks no certificate: a test may talk to any server."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.tls = client_context().wrap_socket(socket.create_connection(address, timeout=DEADLINE_S))
        self._frames = Frames(wire.MAX_FRAME_BYTES)
        self._came: deque[bytes] = deque()
        self.ended = False

    def send(self, body: bytes) -> None:
        """Send one frame; does nothing if the other side is gone."""
        try:
            self.tls.settimeout(DEADLINE_S)
            self.tls.sendall(framed(body))
        except (OSError, ssl.SSLError):
            self.ended = True

    def poll(self, limit_s: float) -> bool:
        """Whether a frame arrives in time."""
        end_s = time.monotonic() + limit_s
        while not self._came and not self.ended:
            left_s = end_s - time.monotonic()
            if left_s <= 0 and not self.tls.pending():
                break
            self._read(max(left_s, 0.001))
        return bool(self._came)

    def recv(self) -> bytes:
        """The next frame; ConnectionError if the other side closed."""
        if not self.poll(DEADLINE_S):
            raise ConnectionError("no frame")
        return self._came.popleft()

    def closed(self, limit_s: float = DEADLINE_S) -> bool:
        """Whether the other side closes in time; what it sends meanwhile is kept."""
        end_s = time.monotonic() + limit_s
        while not self.ended and (left_s := end_s - time.monotonic()) > 0:
            self._read(left_s)
        return self.ended

    def close(self) -> None:
        """As the kernel does for a killed process."""
        self.tls.close()

    def _read(self, limit_s: float) -> None:
        try:
            self.tls.settimeout(limit_s)
            data = self.tls.recv(1 << 16)
        except TimeoutError:
            return
        except OSError:
            data = b""
        self.ended = not data
        self._came.extend(self._frames.feed(data))


class ThreadedServer:
    """A server that admits every peer and queues incoming frames as (link, frame). Its loop runs in a thread.

    ``knocks`` is how many connections have been closed again.
    """

    def __init__(self, certificate: Certificate, port: int = 0) -> None:
        self.came: queue.Queue[tuple[Link, bytes]] = queue.Queue()
        self.knocks = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listener = Listener(certificate.server_context(), "127.0.0.1", port)
        self.port = self._listener.port
        self._call(self._listener.start, self)

    def received(self, link: Link, frame: bytes) -> None:
        """Called by the listener."""
        self._listener.proven(link, FREE)
        self.came.put((link, frame))

    def closed(self, link: Link, reason: str) -> None:  # noqa: ARG002  # the listener's signature
        """Called by the listener."""
        self.knocks += 1

    def send(self, link: Link, body: bytes) -> None:
        """Send one frame."""
        self._call(link.send, body)

    def drop(self, link: Link) -> None:
        """Close the connection."""
        self._call(link.close)

    def close(self) -> None:
        """End the connections and the thread. Idempotent."""
        if self._loop.is_closed():
            return
        self._call(self._listener.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(asyncio.sleep(0.01))  # the sockets are closing
        self._loop.close()

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        done: Future[None] = Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(function(*arguments)))
        done.result(DEADLINE_S)
