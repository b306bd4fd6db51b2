"""A relay between some pilots and the coordinator that delays traffic, holds it back, or drops connections."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

_PIECE_BYTES = 1 << 16
_ROUND_S = 0.02
_CONNECT_S = 5.0


@dataclass
class _Flow:
    """One direction of a connection: data waiting to be passed on, and when each piece came."""

    source: socket.socket
    sink: socket.socket
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)


class Relay:
    """Listens on its own port and connects each peer to ``address``. The storm sets ``delay_s``."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.delay_s = 0.0
        self._listener = socket.create_server((address[0], 0))
        self.endpoint = f"tcp://{address[0]}:{self._listener.getsockname()[1]}"
        self._flows: dict[socket.socket, _Flow] = {}
        self._dropping = self._ending = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def drop(self) -> None:
        """Close all connections; peers may connect again at once."""
        self._dropping = True

    def close(self) -> None:
        """Stop the relay."""
        self._ending = True
        self._thread.join()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, self._listener:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._ending:
                for key, _ in selector.select(_ROUND_S):
                    source = key.fileobj
                    assert isinstance(source, socket.socket)
                    if source is self._listener:
                        self._accept(selector)
                    elif source in self._flows:
                        self._read(selector, self._flows[source])
                self._pass_on(selector)
                if self._dropping:
                    self._dropping = False
                    self._close_all(selector)
            self._close_all(selector)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(self.address, timeout=_CONNECT_S)
        except OSError:
            near.close()
            return
        for source, sink in ((near, far), (far, near)):
            source.settimeout(_CONNECT_S)  # a peer that is stopped must not stop the relay
            self._flows[source] = _Flow(source, sink)
            selector.register(source, selectors.EVENT_READ)

    def _read(self, selector: selectors.BaseSelector, flow: _Flow) -> None:
        piece = b""
        with suppress(OSError):
            piece = flow.source.recv(_PIECE_BYTES)
        if piece:
            flow.waiting.append((time.monotonic(), piece))
        else:
            self._close(selector, flow)

    def _pass_on(self, selector: selectors.BaseSelector) -> None:
        due_s = time.monotonic() - self.delay_s
        for flow in list(self._flows.values()):
            while flow.waiting and flow.waiting[0][0] <= due_s:
                try:
                    flow.sink.sendall(flow.waiting.popleft()[1])
                except OSError:
                    self._close(selector, flow)
                    break

    def _close(self, selector: selectors.BaseSelector, flow: _Flow) -> None:
        for end in (flow.source, flow.sink):
            if self._flows.pop(end, None) is not None:
                selector.unregister(end)
                end.close()

    def _close_all(self, selector: selectors.BaseSelector) -> None:
        for flow in list(self._flows.values()):
            self._close(selector, flow)
