"""A coordinator's requests as methods, with typed arguments and answers; errors of the coordinator are raised here.

One call of the CLI to a coordinator: credentials, a request, its reply.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pilot.core.errors import PilotError, ProtocolError, UserError
from pilot.core.version import __version__
from pilot.io import connection, verbs, wire
from pilot.io.certificate import client_context, is_pinned
from pilot.io.connection import Connection
from pilot.io.framing import Frames, framed
from pilot.io.pool_status import PoolStatus, TrainerHistory
from pilot.io.printable import all_printable
from pilot.io.rundir import RunDir, told_of_owner
from pilot.io.study_definition import StudyDefinition
from pilot.io.submission import LaunchSpec, Submission
from pilot.io.verbs import A, R, StudyList, StudyStatus, TrialList, Verb

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


class PoolClient:
    """Sends requests to the coordinator that wrote the connection file ``file``, each with a timeout of ``timeout_s``.

    Every method raises :class:`UserError` if the coordinator refuses the request, and :class:`PilotError` if it fails
    or does not answer (then transient). Answers contain text from pilots and scripts; control characters in it are
    escaped here.
    """

    def __init__(self, file: Path, timeout_s: float) -> None:
        self._file = file
        self._timeout_s = timeout_s

    def submit(self, submission: Submission) -> verbs.Submitted:
        """Submit a trainer. When this returns, it is in the journal."""
        return self._ask(verbs.SUBMIT, submission)

    def trainers(self) -> verbs.TrainerList:
        """All trainers, in the order of submission."""
        return self._ask(verbs.LIST, verbs.Nothing())

    def history(self, trainer: str) -> TrainerHistory:
        """A trainer's history."""
        return self._ask(verbs.HISTORY, verbs.OneTrainer(trainer))

    def status(self) -> PoolStatus:
        """The pool, the trainers, the decisions."""
        return self._ask(verbs.STATUS, verbs.Nothing())

    def nodes(self) -> verbs.NodeList:
        """The pool's nodes, and which are set aside."""
        return self._ask(verbs.NODES, verbs.Nothing())

    def clear(self, nodes: Sequence[str]) -> verbs.Cleared:
        """Forget the failures of ``nodes``."""
        return self._ask(verbs.CLEAR, verbs.SomeNodes(nodes=list(nodes)))

    def pilots(self) -> verbs.PilotList:
        """The registered pilots."""
        return self._ask(verbs.PILOTS, verbs.Nothing())

    def wait(self, trainers: Sequence[str] = (), limit_s: float = verbs.LONGEST_WAIT_S) -> verbs.Phases:
        """The phases of ``trainers`` (none given: all) once all have ended, or after ``limit_s`` at the latest."""
        return self._ask(verbs.WAIT, verbs.Wait(list(trainers), limit_s))

    def cancel(self, trainer: str) -> verbs.Cancelled:
        """End a trainer now."""
        return self._ask(verbs.CANCEL, verbs.OneTrainer(trainer))

    def scale(self, pilots: int | None) -> verbs.Scaled:
        """Keep this many pilots; None: as many as the trainers can use."""
        return self._ask(verbs.SCALE, verbs.Pilots(pilots))

    def resume(
        self, trainer: str, launch: LaunchSpec, budget_node_hours: float | None = None, *, from_scratch: bool = False
    ) -> verbs.Standing:
        """Continue a trainer that failed or was cancelled; its script is started as in ``launch``."""
        return self._ask(verbs.RESUME, verbs.Resumption(trainer, launch, budget_node_hours, from_scratch))

    def hold(self, trainer: str) -> verbs.Standing:
        """Take a trainer's nodes away until it is released."""
        return self._ask(verbs.HOLD, verbs.OneTrainer(trainer))

    def release(self, trainer: str) -> verbs.Standing:
        """Give a held trainer nodes again."""
        return self._ask(verbs.RELEASE, verbs.OneTrainer(trainer))

    def remove(self, trainers: Sequence[str]) -> verbs.Removed:
        """Remove trainers that have ended, with their files."""
        return self._ask(verbs.REMOVE, verbs.SomeTrainers(list(trainers)))

    def explain(self, trainer: str) -> verbs.Explained:
        """Why a trainer has the nodes that it has."""
        return self._ask(verbs.EXPLAIN, verbs.OneTrainer(trainer))

    def run_study(self, definition: StudyDefinition) -> StudyStatus:
        """Submit a study. When this returns, it is in the journal."""
        return self._ask(verbs.STUDY_RUN, definition)

    def studies(self) -> StudyList:
        """All studies, in the order of submission."""
        return self._ask(verbs.STUDIES, verbs.Nothing())

    def trials(self, study: str) -> TrialList:
        """A study and its trials."""
        return self._ask(verbs.STUDY_TRIALS, verbs.OneStudy(study))

    def stop_study(self, study: str) -> StudyStatus:
        """Stop a study: its trials are shelved where they are."""
        return self._ask(verbs.STUDY_STOP, verbs.OneStudy(study))

    def resume_study(self, study: str, more: int = 0, space: StudyDefinition | None = None) -> StudyStatus:
        """Continue a study, with ``more`` additional trials; ``space``, if given, must be the study's own."""
        return self._ask(verbs.STUDY_RESUME, verbs.StudyResumption(study, more, space))

    def down(self) -> verbs.Draining:
        """Begin to drain the pool; the coordinator exits when everything is gone."""
        return self._ask(verbs.DOWN, verbs.Nothing())

    def _ask(self, verb: Verb[A, R], arguments: A) -> R:
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
