"""Messages between the coordinator, the agents and the CLI: msgspec structs in MessagePack, never pickle.

One frame is one message. Decoding is strict: an unknown tag, a missing or mistyped field, or an oversized frame raises
:class:`ProtocolError`, and the peer is refused. A peer's first message is :class:`Credentials`; its role decides what
it may send after that. Secrets travel only in messages (encrypted by TLS), never in arguments or the environment.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec

from pilot.core.commands import (
    CheckScript,
    DissolveGroup,
    ExamineGroup,
    PauseGroup,
    ReleaseNode,
    SetCheckpointInterval,
    StopWorker,
    WriteCheckpoint,
)
from pilot.core.errors import JournalError, ProtocolError
from pilot.core.events import Unloaded
from pilot.rundir.entries import FromPlain, plain
from pilot.submission.loaded_code import FILES_AT_ONCE, PATH_MAX
from pilot.submission.submission import LaunchSpec

T = TypeVar("T")

PROTOCOL = 14
"""Incremented with every incompatible change; peers with another number are refused."""

MAX_FRAME_BYTES = 8 * 1024 * 1024


Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A counter: a whole number that every JSON reader represents exactly, and whose sums do not overflow."""

Rails = Annotated[int, msgspec.Meta(ge=1, le=8)]
"""Rank processes of a node, see :mod:`pilot.comm.rails`."""

Endpoint = Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[0-9.]+:[0-9]{1,5}$")]
"""An IPv4 address and a port, where an agent answers others."""

Text = Annotated[str, msgspec.Meta(max_length=1000)]
"""Text for people."""

Name = Annotated[str, msgspec.Meta(max_length=256)]


Versions = Annotated[dict[Name, Name], msgspec.Meta(max_length=16)]
"""Versions of what is installed on a node, by name."""


Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
"""A SHA-256 in hexadecimal digits."""

FilePath = Annotated[str, msgspec.Meta(max_length=PATH_MAX, pattern="^[^\x00-\x1f\x7f]+$")]
"""A file's path on a node, for people."""


class StepTimes(msgspec.Struct, frozen=True, array_like=True):
    """``steps`` of a node with ``samples`` of its own, for which it computed ``own_s`` of the ``wall_s`` that they
    took; the rest it waited for others.
    """

    steps: Count
    samples: Count
    own_s: Seconds
    wall_s: Seconds


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages; the tag is the class name."""


# --- anybody -> coordinator -----------------------------------------------------------------------------------------


class Credentials(Message, frozen=True):
    """First message of every peer. Its name and fields are the same in all later protocols."""

    protocol: int
    version: str
    token: str


# --- agent -> coordinator -------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First message of an agent after its credentials, on every connection.

    ``pilot`` is a name unique to this run of the agent and ends in ``tokens.life_name(secret)``; ``address`` is where
    other nodes reach it for MPI; ``job`` and ``restart`` are the batch scheduler's job id and restart count ("" and 0
    if there is none). Its job ends in ``walltime_s`` seconds: the clocks of hosts are never compared. ``workers`` lists
    the trainers' processes running on it, as (trainer, its uid, generation or 0, step, ready). ``versions`` is what the
    agent's interpreter has (see :mod:`pilot.agent.job_environment`).
    """

    pilot: str
    secret: str
    host: str
    address: str
    pid: Count
    job: str = ""
    restart: Count = 0
    walltime_s: float | None = None
    workers: list[tuple[Name, Name, Count, Count, bool]] = []
    versions: Versions = {}


class Heartbeat(Message, frozen=True):
    """The agent is alive; sent every ``heartbeat_s``. ``sent_s`` is on its own clock. ``paces`` are what its workers
    have measured since the last one, by trainer, each at most the newest.
    """

    sent_s: float
    paces: Annotated[dict[Name, StepTimes], msgspec.Meta(max_length=64)] = {}


class Noticed(Message, frozen=True):
    """The pilot was given notice (by a signal, or because its wall time ends): it will be gone within ``grace_s``."""

    cause: str
    grace_s: float


class WorkerReady(Message, frozen=True):
    """The worker of ``trainer`` is warm: modules imported, model built, waiting for a group."""

    trainer: Name
    warm_s: float


class CodeLoaded(Message, frozen=True):
    """From each training process, before ``WorkerReady`` and whenever it has loaded more: the user's Python files that
    were not copied at the submission, by path, and the SHA-256 of what it loaded. Repeated when its agent comes back.
    """

    trainer: Name
    files: Annotated[dict[FilePath, Sha256], msgspec.Meta(max_length=FILES_AT_ONCE)]


class WorkerExited(Message, frozen=True):
    """The worker of ``trainer`` ended. ``cause`` is an ``ExitCause``; ``detail`` is for people (signal, last lines)."""

    trainer: Name
    cause: str
    detail: str = ""
    log: str = ""


class RankAddress(Message, frozen=True):
    """From each member while its group forms: the address that its rank process has published (PMI put) for the others.
    ``endpoint``: where its agent answers those of the others. A rank without others may send nothing.
    """

    trainer: Name
    generation: Count
    puts: dict[str, str]
    endpoint: Endpoint


class RankJoined(Message, frozen=True):
    """From the leader of a forming group: the rank processes of all members are in MPI."""

    trainer: Name
    generation: Count


class PeersUnreached(Message, frozen=True):
    """From a member, some time after ``GroupAddresses``: it cannot reach the agents of these ``ranks``. Sent again when
    that changes.
    """

    trainer: Name
    generation: Count
    ranks: list[Count]


class GroupFormed(Message, frozen=True):
    """From the leader: the group of ``generation`` trains from ``step`` on. See ``core.events.GroupFormed``."""

    trainer: Name
    generation: Count
    step: Count
    resumed: Count | None = None
    identity: dict[Name, Text] = {}
    accepted: list[tuple[Count, Name, Text, Text]] = []


class GroupBroken(Message, frozen=True):
    """From any member: the group of ``generation`` cannot continue (a rank process died, or forming failed).

    ``unloaded``: its worker could not load the state; see ``core.events.Unloaded``.
    """

    trainer: Name
    generation: Count
    reason: str
    unloaded: Unloaded | None = None


class RankPaused(Message, frozen=True):
    """From each member: it stopped after ``step``, as requested by ``PauseGroup``."""

    trainer: Name
    generation: Count
    step: Count


class RankStalled(Message, frozen=True):
    """From a rank: it has waited ``waited_s`` for the others. Sent at the site's time-out, whenever the wait has
    doubled, and in answer to ``ExamineGroup``. ``summing``: it waits for the sums of ``step``; otherwise for the result
    of a gather or a spread, between two steps or at the group's start.
    """

    trainer: Name
    generation: Count
    step: Count
    waited_s: float
    summing: bool


class RankStepTimes(Message, frozen=True):
    """From a worker to its agent, every ten seconds at most; it goes on with the next ``Heartbeat``."""

    trainer: Name
    pace: StepTimes


class RankExamined(Message, frozen=True):
    """Answer to ``ExamineGroup``. ``seen`` is a ``core.events.Seen``; ``detail`` is for people."""

    trainer: Name
    generation: Count
    seen: str
    detail: str = ""


class CheckpointWritten(Message, frozen=True):
    """A checkpoint was published (``path``) or failed (``error``); ``asked``: it was requested by ``WriteCheckpoint``.

    ``seconds`` is how long writing took, ``alone_s`` how long one rank takes to write all ``bytes`` by itself.
    """

    trainer: Name
    generation: Count
    step: Count
    asked: bool
    path: str = ""
    error: str = ""
    seconds: float = 0.0
    bytes: Count = 0
    alone_s: float = 0.0


class ScriptChecked(Message, frozen=True):
    """Answer to ``CheckScript``: what ``pilot check`` found, in one line. Repeated if it is asked for again."""

    trainer: Name
    result: Literal["passed", "differs", "unchecked"]
    text: str


class Progress(Message, frozen=True):
    """From the leader, at most once a second; see ``core.events.Progress``.

    ``ledger`` rows are (generation, epoch, step, step_end, cursor, cursor_end). ``reports`` of a trial are (number,
    value) of its study's metric.
    """

    trainer: Name
    generation: Count
    step: Count
    epoch: Count
    samples: Count
    samples_per_s: float | None = None
    stall_s: float | None = None
    rescale_s: float | None = None
    ledger: list[tuple[Count, Count, Count, Count, Count, Count]] = []
    metrics: dict[str, float] = {}
    reports: list[tuple[Count, float]] = []


class TrainerFinished(Message, frozen=True):
    """From the leader: the script's loop ended on all ranks after ``step`` and the final checkpoint is published."""

    trainer: Name
    generation: Count
    step: Count
    samples: Count
    metrics: dict[str, float] = {}


class Remark(Message, frozen=True):
    """Something that the user should see, such as why a checkpoint was skipped."""

    trainer: Name
    text: str


# --- coordinator -> agent -------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """The agent is in the pool as ``node``. ``rails``: rank processes of each node in a group; ``check_limit_s``: how
    long a check of a script may take.
    """

    node: str
    coordinator: str
    heartbeat_s: float
    silent_s: float
    orphan_s: float
    grace_s: float
    rails: Rails = 1
    check_limit_s: float = 120.0


class Forgotten(Message, frozen=True):
    """The pilot counts as lost, because of ``reason``: it ends everything that it started, and may come back as a new
    one unless it was given notice.
    """

    reason: str


class HeartbeatSeen(Message, frozen=True):
    """Answer to ``Heartbeat``: the agent's lease of ``orphan_s`` starts at its ``sent_s``."""

    sent_s: float


class Refused(Message, frozen=True):
    """The peer is refused; it prints why and exits with status 2."""

    reason: str


class StartWorker(Message, frozen=True):
    """Start the training process of ``trainer``. See ``core.commands.StartWorker``.

    ``uid`` is the trainer's: the worker neither writes to another trainer's folder nor loads its checkpoints.
    ``directory`` is its folder in the run directory, with ``checkpoints/`` and ``logs/``. ``ranks`` training processes
    on the node are one worker. ``patience_s``: see ``core.spec.TrainerSpec``. ``node_fabric``: how the node's processes
    sum, as set in the site file ("": depends on their device).
    """

    trainer: str
    uid: str
    directory: str
    launch: LaunchSpec
    checkpoint_interval_s: float
    checkpoints_kept: int
    patience_s: float = math.inf
    ranks: int = 1
    node_fabric: str = ""


class JoinGroup(Message, frozen=True):
    """To each member: start a rank process for node ``rank`` of ``size``. The generation before it trains on until the
    switch. See ``core.commands.FormGroup`` for ``saved_step`` and ``given_up``.
    """

    trainer: str
    generation: int
    rank: int
    size: int
    saved_step: int = 0
    given_up: int = 0


class GroupAddresses(Message, frozen=True):
    """To each member, when all have sent their ``RankAddress``: the addresses of all, and by rank their agents'
    endpoints.
    """

    trainer: str
    generation: int
    puts: dict[str, str]
    endpoints: list[str]


class LeaveGroup(Message, frozen=True):
    """To a rank of the training group that is not in ``generation``: at the switch, stop and keep your state."""

    trainer: str
    generation: int


# --- CLI <-> coordinator --------------------------------------------------------------------------------------------


class Request(Message, frozen=True):
    """One call by the CLI: a verb (:mod:`pilot.protocol.requests`) and its arguments."""

    verb: str
    arguments: dict[str, Any] = {}


class Reply(Message, frozen=True):
    """The answer: ``result``, or ``error`` with the CLI's exit status."""

    result: Any = None
    error: str = ""
    exit_status: int = 0


FromAgent = (
    Hello
    | Heartbeat
    | Noticed
    | WorkerReady
    | CodeLoaded
    | WorkerExited
    | RankAddress
    | RankJoined
    | PeersUnreached
    | GroupFormed
    | GroupBroken
    | RankPaused
    | RankStalled
    | RankStepTimes
    | RankExamined
    | CheckpointWritten
    | ScriptChecked
    | Progress
    | TrainerFinished
    | Remark
)
Order = (
    StopWorker
    | PauseGroup
    | ExamineGroup
    | DissolveGroup
    | WriteCheckpoint
    | SetCheckpointInterval
    | CheckScript
    | ReleaseNode
)
"""The core's commands that an agent carries out. They are sent as they are, in the journal's form."""

_ToAgent = Welcome | HeartbeatSeen | Refused | Forgotten | StartWorker | JoinGroup | GroupAddresses | LeaveGroup
ToAgent = _ToAgent | Order
Sent = Message | Order

_encoder = msgspec.msgpack.Encoder()
_order_of = FromPlain[Order](Order)


def encode(message: Sent, event: int = 0) -> bytes:
    """One message as one frame. ``event``: the number of the journal entry that caused it; 0: none did."""
    return _encoder.encode(message if isinstance(message, Message) and not event else _with_event(message, event))


def _with_event(message: Sent, event: int) -> dict[str, Any]:
    data = msgspec.to_builtins(message, builtin_types=(bytes,)) if isinstance(message, Message) else plain(message)
    return {**data, "event": event}


class _Decoder(Generic[T]):
    """Decodes a frame; :class:`ProtocolError` if it is not one of the messages in ``kind``."""

    def __init__(self, kind: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)

    def __call__(self, frame: bytes) -> T:
        """See the class."""
        if len(frame) > MAX_FRAME_BYTES:
            raise ProtocolError(f"frame of {len(frame)} bytes is larger than {MAX_FRAME_BYTES}")
        try:
            message: T = self._decoder.decode(frame)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise _no_message(error) from None
        return message


decode_credentials = _Decoder[Credentials](Credentials)
decode_from_agent = _Decoder[FromAgent](FromAgent)
decode_from_cli = _Decoder[Request](Request)
decode_at_cli = _Decoder[Reply | Refused](Reply | Refused)
_decode_plain = _Decoder[dict[str, Any]](dict[str, Any])


def decode_at_agent(frame: bytes) -> ToAgent:
    """Decode a message from the coordinator to an agent."""
    return decode_with_event(frame)[0]


def decode_with_event(frame: bytes) -> tuple[ToAgent, int]:
    """A message from the coordinator to an agent, and the number of the journal entry that caused it (0: none)."""
    data = _decode_plain(frame)
    try:
        event = msgspec.convert(data.pop("event", 0), Count)
        return _order_of(data) if _order_of.knows(data) else msgspec.convert(data, _ToAgent), event
    except (JournalError, msgspec.ValidationError) as error:
        raise _no_message(error) from None


def _no_message(error: Exception) -> ProtocolError:
    return ProtocolError(f"not a message of protocol {PROTOCOL}: {error}")
