"""One call of the CLI to a coordinator: credentials, a request, its reply."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path
from typing import Any

from pilot.core.errors import PilotError, ProtocolError, UserError
from pilot.core.version import __version__
from pilot.io import connection, wire
from pilot.io.certificate import client_context, is_pinned
from pilot.io.connection import Connection
from pilot.io.framing import Frames, framed
from pilot.io.rundir import RunDir, told_of_owner

_RETRY_S = 0.2
_READ_BYTES = 1 << 16


def request(file: Path, verb: str, arguments: dict[str, Any], timeout_s: float, *, changes: bool = True) -> wire.Reply:
    """Ask the coordinator that wrote the connection file ``file``.

    Parameters
    ----------
    changes : whether the request may change something. One that does not is repeated if the coordinator ends before it
        has answered, because it may be restarted

    Raises
    ------
    UserError
        The file is missing or not ours, or the coordinator refuses the request.
    PilotError
        No answer within ``timeout_s``: the coordinator hangs, or the network is down. Transient.
    """
    where = connection.load(file)
    message = wire.Request(verb, arguments)
    end_s = time.monotonic() + timeout_s
    try:
        while (reply := _attempt(where, message, end_s, file, changes=changes)) is None:
            where = connection.load(file)  # a restarted one may listen at another port
    except OSError as error:
        late = isinstance(error, TimeoutError)
        reason = f"no answer within {timeout_s:g} s" if late else f"no answer: {error.strerror or error}"
        rundir = RunDir(file.parent)
        raise PilotError(
            f"{reason} from the coordinator at {where.endpoint}; {told_of_owner(rundir)}; its log is {rundir.log}",
            transient=True,
        ) from None
    except ProtocolError as error:
        raise PilotError(f"the coordinator at {where.endpoint} gave an invalid answer: {error}") from None
    if isinstance(reply, wire.Refused):
        raise UserError(f"the coordinator refuses: {reply.reason}")
    return reply


def _attempt(
    where: Connection, message: wire.Request, end_s: float, file: Path, *, changes: bool
) -> wire.Reply | wire.Refused | None:
    """None: the coordinator is perhaps being restarted; ask again."""
    try:
        return _ask(where, message, end_s)
    except (ConnectionError, ssl.SSLEOFError) as error:
        may_have_arrived = not isinstance(error, ConnectionRefusedError)
        if (changes and may_have_arrived) or _left_s(end_s) <= _RETRY_S:
            raise
        time.sleep(_RETRY_S)
        if not file.exists():  # it was shut down
            raise
    return None


def _ask(where: Connection, message: wire.Request, end_s: float) -> wire.Reply | wire.Refused:
    credentials = wire.Credentials(wire.PROTOCOL, __version__, where.token)
    with _connected(where, end_s) as stream:
        stream.sendall(framed(wire.encode(credentials)) + framed(wire.encode(message)))
        return wire.decode_at_cli(_frame(stream, end_s))


def _connected(where: Connection, end_s: float) -> ssl.SSLSocket:
    """A TLS connection to the server of the connection file. Nothing is sent to any other server."""
    plain = socket.create_connection(where.address, timeout=_left_s(end_s))
    try:
        plain.settimeout(_left_s(end_s))
        stream = client_context().wrap_socket(plain)
    except (ssl.SSLEOFError, ConnectionResetError):
        plain.close()
        raise ConnectionRefusedError("it closed the connection") from None
    except ssl.SSLError as error:
        plain.close()
        raise UserError(_other(where, f"TLS failed: {error.reason}")) from None
    except BaseException:
        plain.close()
        raise
    if not is_pinned(stream.getpeercert(binary_form=True), where.certificate):
        stream.close()
        raise UserError(_other(where, "its certificate is different"))
    return stream


def _frame(stream: ssl.SSLSocket, end_s: float) -> bytes:
    frames = Frames(wire.MAX_FRAME_BYTES)
    while True:
        stream.settimeout(_left_s(end_s))
        data = stream.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("it closed the connection")
        for frame in frames.feed(data):
            return frame


def _left_s(end_s: float) -> float:
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _other(where: Connection, why: str) -> str:
    return f"what answers at {where.endpoint} is not the coordinator of this connection file ({why}); is the pool up?"
