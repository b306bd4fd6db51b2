"""A client of the coordinator: each request is a method, with typed arguments and answer."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path
from typing import Any

import msgspec

from pilot.core.errors import PilotError, ProtocolError, UserError
from pilot.core.version import __version__
from pilot.host.printable import all_printable
from pilot.protocol import connection, requests, wire
from pilot.protocol.connection import Connection, client_context, is_pinned
from pilot.protocol.framing import Frames, framed
from pilot.protocol.requests import A, R, StudyStatus, Verb
from pilot.rundir.rundir import RunDir, owner_status
from pilot.submission.study_definition import StudyDefinition
from pilot.submission.submission import Submission

_RETRY_S = 0.2
_READ_BYTES = 1 << 16


def request(file: Path, verb: str, arguments: dict[str, Any], timeout_s: float, *, changes: bool = True) -> wire.Reply:
    """Send a request to the coordinator that wrote the connection file ``file``; returns its reply.

    Parameters
    ----------
    changes : whether the request may change something. If not, it is repeated if the coordinator ends before it
        answers, because it may be restarted

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
            f"{reason} from the coordinator at {where.endpoint}; {owner_status(rundir)}; its log is {rundir.log}",
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
    """Return the reply; None if the coordinator may be restarting."""
    credentials = wire.Credentials(wire.PROTOCOL, __version__, where.token)
    try:
        with _connected(where, end_s) as stream:
            stream.sendall(framed(wire.encode(credentials)) + framed(wire.encode(message)))
            return wire.decode_at_cli(_frame(stream, end_s))
    except (ConnectionError, ssl.SSLEOFError) as error:
        may_have_arrived = not isinstance(error, ConnectionRefusedError)
        if (changes and may_have_arrived) or _left_s(end_s) <= _RETRY_S:
            raise
        time.sleep(_RETRY_S)
        if not file.exists():  # it was shut down
            raise
    return None


def _connected(where: Connection, end_s: float) -> ssl.SSLSocket:
    """Return a TLS connection to the server of the connection file. Nothing is sent to any other server."""
    with socket.create_connection(where.address, timeout=_left_s(end_s)) as plain:  # TLS takes over its descriptor
        plain.settimeout(_left_s(end_s))
        try:
            stream = client_context().wrap_socket(plain)
        except (ssl.SSLEOFError, ConnectionResetError):
            raise ConnectionRefusedError("it closed the connection") from None
        except ssl.SSLError as error:
            raise UserError(_other(where, f"TLS failed: {error.reason}")) from None
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
    return f"the server at {where.endpoint} is not this pool's coordinator: {why}; is the pool up?"


class PoolClient:
    """Sends requests to the coordinator that wrote the connection file ``file``, each with a timeout of ``timeout_s``.

    A method raises :class:`UserError` if the coordinator refuses the request, and :class:`PilotError` if it fails or
    does not answer (then transient). Control characters in texts of pilots and scripts are escaped in answers.
    """

    def __init__(self, file: Path, timeout_s: float) -> None:
        self._file = file
        self._timeout_s = timeout_s

    def submit(self, submission: Submission) -> requests.Submitted:
        """Submit a trainer. When this returns, it is in the journal."""
        return self.ask(requests.SUBMIT, submission)

    def run_study(self, definition: StudyDefinition) -> StudyStatus:
        """Submit a study. When this returns, it is in the journal."""
        return self.ask(requests.STUDY_RUN, definition)

    trainers = requests.LIST
    history = requests.HISTORY
    status = requests.STATUS
    nodes = requests.NODES
    clear = requests.CLEAR
    pilots = requests.PILOTS
    wait = requests.WAIT
    cancel = requests.CANCEL
    scale = requests.SCALE
    resume = requests.RESUME
    hold = requests.HOLD
    release = requests.RELEASE
    remove = requests.REMOVE
    explain = requests.EXPLAIN
    studies = requests.STUDIES
    trials = requests.STUDY_TRIALS
    stop_study = requests.STUDY_STOP
    resume_study = requests.STUDY_RESUME
    down = requests.DOWN  # answered at once: the coordinator exits when everything is gone

    def ask(self, verb: Verb[..., A, R], arguments: A) -> R:
        """Send the request ``verb``; returns its answer."""
        try:
            reply = request(
                self._file, verb.name, msgspec.to_builtins(arguments), self._timeout_s, changes=verb.changes
            )
        except (UnicodeEncodeError, OverflowError) as unsendable:
            raise UserError(f"{verb.name}: invalid argument: {unsendable}") from None
        if reply.error:
            error = UserError if reply.exit_status == UserError.exit_status else PilotError
            raise error(reply.error)
        try:
            return msgspec.convert(all_printable(reply.result), verb.answer)
        except msgspec.ValidationError as error:
            raise PilotError(f"cannot read the coordinator's answer to {verb.name}: {error}") from None
