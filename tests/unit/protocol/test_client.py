"""What a command does if the coordinator ends while it is asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pilot.core.errors import PilotError
from pilot.protocol import connection, wire
from pilot.protocol.connection import Certificate, Connection
from pilot.protocol.framing import framed
from pilot.protocol.pool_client import request

LIMIT_S = 30.0
BEFORE_TLS, AFTER_REQUEST = "before the handshake", "after the request"


@contextmanager
def coordinator(file: Path, ends: str | None) -> Iterator[list[threading.Thread]]:
    """One that answers its only request, or ends at that point; the next one listens at another port."""
    certificate = Certificate.make()
    server = socket.create_server(("127.0.0.1", 0))
    where = Connection(f"tcp://127.0.0.1:{server.getsockname()[1]}", certificate.fingerprint, "t", "e", "pool", "0")

    def serve() -> None:
        plain, _ = server.accept()
        server.close()
        if ends == BEFORE_TLS:
            plain.close()
            return
        with certificate.server_context().wrap_socket(plain, server_side=True) as stream:
            stream.recv(1 << 16)
            if ends is None:
                stream.sendall(framed(wire.encode(wire.Reply("an answer"))))

    connection.write(file, where)
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield [thread]
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def asked(file: Path, ends: str, *, changes: bool) -> object:
    """Ask a coordinator that ends, and is restarted."""
    replies: list[object] = []

    def ask() -> None:
        try:
            replies.append(request(file, "list", {}, LIMIT_S, changes=changes).result)
        except PilotError as error:
            replies.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    with coordinator(file, ends) as first:
        asking.start()
        first[0].join(LIMIT_S)
    if ends == BEFORE_TLS or not changes:
        with coordinator(file, None):
            asking.join(LIMIT_S)
    asking.join(LIMIT_S)
    return replies[0]


@pytest.mark.parametrize(("ends", "changes"), [(BEFORE_TLS, True), (BEFORE_TLS, False), (AFTER_REQUEST, False)])
def test_a_restarted_one_is_asked_again_if_the_request_changes_nothing_or_was_not_sent(
    tmp_path: Path, ends: str, changes: bool
) -> None:
    assert asked(tmp_path / "connection.json", ends, changes=changes) == "an answer"


def test_a_request_that_may_have_changed_something_is_not_sent_twice(tmp_path: Path) -> None:
    assert "no answer: " in str(asked(tmp_path / "connection.json", AFTER_REQUEST, changes=True))


def test_one_that_is_gone_for_good_is_not_awaited(tmp_path: Path) -> None:
    file = tmp_path / "connection.json"
    with coordinator(file, BEFORE_TLS):
        socket.create_connection(connection.load(file).address).close()
    removal = threading.Timer(0.5, file.unlink)
    removal.start()
    with pytest.raises(PilotError, match="no answer: Connection refused"):
        request(file, "list", {}, 100 * LIMIT_S)
    removal.join()
