"""A coordinator's requests as methods, with typed arguments and answers; errors of the coordinator are raised here.

One call of the CLI to a coordinator: credentials, a request, its reply.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import msgspec

from pilot.core.errors import PilotError, ProtocolError, UserError
from pilot.core.version import __version__
from pilot.host.printable import all_printable
from pilot.protocol import connection, wire
from pilot.protocol import requests as verbs
from pilot.protocol.connection import Connection, client_context, is_pinned
from pilot.protocol.framing import Frames, framed
from pilot.protocol.requests import A, R, StudyStatus, Verb
from pilot.rundir.rundir import RunDir, told_of_owner
from pilot.submission.study_definition import StudyDefinition
from pilot.submission.submission import Submission

_RETRY_S = 0.2
_READ_BYTES = 1 << 16

P = ParamSpec("P")


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


def _asks(verb: Verb[A, R], arguments: Callable[P, A]) -> Callable[Concatenate[PoolClient, P], R]:
    """A method that sends the request ``verb``; it takes what ``arguments`` takes."""

    def method(self: PoolClient, /, *given: P.args, **named: P.kwargs) -> R:
        return self.ask(verb, arguments(*given, **named))

    return method


class PoolClient:
    """Sends requests to the coordinator that wrote the connection file ``file``, each with a timeout of ``timeout_s``.

    Each request is a method, which takes the arguments of its verb. It raises :class:`UserError` if the coordinator
    refuses the request, and :class:`PilotError` if it fails or does not answer (then transient). Answers contain text
    from pilots and scripts; control characters in it are escaped here.
    """

    def __init__(self, file: Path, timeout_s: float) -> None:
        self._file = file
        self._timeout_s = timeout_s

    def submit(self, submission: Submission) -> verbs.Submitted:
        """Submit a trainer. When this returns, it is in the journal."""
        return self.ask(verbs.SUBMIT, submission)

    def run_study(self, definition: StudyDefinition) -> StudyStatus:
        """Submit a study. When this returns, it is in the journal."""
        return self.ask(verbs.STUDY_RUN, definition)

    trainers = _asks(verbs.LIST, verbs.Nothing)
    history = _asks(verbs.HISTORY, verbs.OneTrainer)
    status = _asks(verbs.STATUS, verbs.Nothing)
    nodes = _asks(verbs.NODES, verbs.Nothing)
    clear = _asks(verbs.CLEAR, verbs.SomeNodes)
    pilots = _asks(verbs.PILOTS, verbs.Nothing)
    wait = _asks(verbs.WAIT, verbs.Wait)
    cancel = _asks(verbs.CANCEL, verbs.OneTrainer)
    scale = _asks(verbs.SCALE, verbs.Pilots)
    resume = _asks(verbs.RESUME, verbs.Resumption)
    hold = _asks(verbs.HOLD, verbs.OneTrainer)
    release = _asks(verbs.RELEASE, verbs.OneTrainer)
    remove = _asks(verbs.REMOVE, verbs.SomeTrainers)
    explain = _asks(verbs.EXPLAIN, verbs.OneTrainer)
    studies = _asks(verbs.STUDIES, verbs.Nothing)
    trials = _asks(verbs.STUDY_TRIALS, verbs.OneStudy)
    stop_study = _asks(verbs.STUDY_STOP, verbs.OneStudy)
    resume_study = _asks(verbs.STUDY_RESUME, verbs.StudyResumption)
    down = _asks(verbs.DOWN, verbs.Nothing)  # answered at once: the coordinator exits when everything is gone

    def ask(self, verb: Verb[A, R], arguments: A) -> R:
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
