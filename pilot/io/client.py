"""One call of the CLI to a coordinator: a CURVE-encrypted request and its reply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import zmq

from pilot.core.errors import PilotError, UserError
from pilot.io import connection, wire


def request(file: Path, verb: str, arguments: dict[str, Any], timeout_s: float) -> wire.Reply:
    """Ask the coordinator that wrote the connection file ``file``.

    Raises
    ------
    UserError
        The file is not there or not ours, or the coordinator refuses us.
    PilotError
        No answer within ``timeout_s``: it is stopped, or the network is cut. Transient.
    """
    where = connection.load(file)
    message = wire.Request(wire.PROTOCOL, where.token, verb, arguments)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_serverkey = where.server_key.encode()
        socket.connect(where.endpoint)
        socket.send(wire.encode(message))
        if not socket.poll(round(timeout_s * 1000)):
            raise PilotError(
                f"no answer from the coordinator at {where.endpoint} within {timeout_s:g} s; "
                f"is it up? its log is {file.parent / 'coordinator.log'}",
                transient=True,
            )
        reply = wire.decode_at_cli(socket.recv())
    if isinstance(reply, wire.Refused):
        raise UserError(f"the coordinator refuses: {reply.reason}")
    return reply
