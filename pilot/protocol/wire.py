"""Messages between the coordinator, the agents and the CLI: msgspec structs in MessagePack, never pickle.

One frame is one message. Decoding is strict: an unknown tag, a missing or mistyped field, or an oversized frame raises
:class:`ProtocolError`, and the peer is refused. A peer's first message is :class:`Credentials`; its role decides what
it may send after that. Secrets travel only in messages (encrypted by TLS), never in arguments or the environment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pilot.core import commands
from pilot.core.errors import JournalError, ProtocolError
from pilot.core.events import Unloaded
from pilot.protocol.fields import Count, Endpoint, FilePath, Name, Sha256, StepTimes, Text, Versions
from pilot.rundir.entries import FromPlain, plain
from pilot.submission.loaded_code import FILES_AT_ONCE
from pilot.submission.submission import LaunchSpec

PROTOCOL = 19
"""Incremented with every incompatible change; peers with another number are refused."""

MAX_FRAME_BYTES = 8 * 1024 * 1024


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages; the tag is the class name."""


class Credentials(Message, frozen=True):
    """First message of every peer. Its name and fields are the same in all later protocols."""

    protocol: int
    version: str
    token: str


class FromAgent(Message, frozen=True):
    """Base of the messages from an agent, and from the workers and rank processes that report through it."""


class FromGroup(FromAgent, frozen=True):
    """Base of the messages about one generation of a trainer's group."""

    trainer: Name
    generation: Count


class Hello(FromAgent, frozen=True):
    """First message of an agent after its credentials, on every connection.

    ``pilot`` is unique to this run of the agent and ends in ``connection.life_name(secret)``; other nodes reach it at
    ``address`` for MPI; ``job`` and ``restart`` are the batch scheduler's job id and restart count ("" and 0 if there
    is none). Its job ends in ``walltime_s`` seconds: the clocks of hosts are never compared. ``workers`` lists the
    trainers' processes running on it, as (trainer, its uid, generation or 0, step, ready). ``versions`` are those of
    the agent's interpreter and its packages (see :mod:`pilot.agent.job_environment`); the rest is as in ``NodeType``.
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
    accelerator: Annotated[str, Meta(max_length=64)] = ""
    accelerators: Annotated[int, Meta(ge=0, le=1024)] = 0
    memory_gb: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    cores: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class Heartbeat(FromAgent, frozen=True):
    """Sent every ``heartbeat_s``, at ``sent_s`` on the agent's clock; with new measurements of workers, by trainer."""

    sent_s: float
    step_times: Annotated[dict[Name, StepTimes], Meta(max_length=64)] = {}


class Noticed(FromAgent, frozen=True):
    """The pilot got a notice (a signal, or the end of its wall time): it leaves within ``grace_s``."""

    cause: str
    grace_s: float


class WorkerReady(FromAgent, frozen=True):
    """The worker of ``trainer`` waits for a group: its modules are imported, its model is built."""

    trainer: Name
    warm_s: float


class CodeLoaded(FromAgent, frozen=True):
    """The SHA-256, by path, of the user's Python files that a training process loaded in place. Sent before
    ``WorkerReady``, whenever it has loaded more, and when its agent comes back.
    """

    trainer: Name
    files: Annotated[dict[FilePath, Sha256], Meta(max_length=FILES_AT_ONCE)]


class ReplicaAddresses(FromAgent, frozen=True):
    """The values by which the training processes of a replica of several nodes find each other, and to its other nodes
    those that they have not sent themselves.
    """

    trainer: Name
    replica: Count
    values: Annotated[dict[Name, bytes], Meta(max_length=1024)]


class WorkerExited(FromAgent, frozen=True):
    """The worker of ``trainer`` ended. See ``core.events.WorkerExited``; ``detail`` is for people."""

    trainer: Name
    cause: str
    detail: str = ""
    log: str = ""
    origin: str = ""
    out_of_memory: bool = False


class ScriptRaised(FromAgent, frozen=True):
    """From a worker to its agent: the exception that ends its script, for ``WorkerExited``."""

    trainer: Name
    status: Count
    text: str
    origin: str
    out_of_memory: bool = False


class RankAddress(FromGroup, frozen=True):
    """From each of several members while a group forms: the PMI puts of its rank process, its agent's ``endpoint``."""

    puts: dict[str, str]
    endpoint: Endpoint


class RankJoined(FromGroup, frozen=True):
    """From the leader: the rank processes of all members have initialised MPI together."""


class PeersUnreached(FromGroup, frozen=True):
    """From a member after ``GroupAddresses``: it cannot reach the agents of ``ranks``. Sent again if that changes."""

    ranks: list[Count]


class GroupFormed(FromGroup, frozen=True):
    """From the leader: the group trains from ``step`` on. See ``core.events.GroupFormed``."""

    step: Count
    resumed: Count | None = None
    identity: dict[Name, Text] = {}
    accepted: list[tuple[Count, Name, Text, Text]] = []


class GroupBroken(FromGroup, frozen=True):
    """From any member: the group cannot continue, because it broke, did not form, or its state was ``unloaded``."""

    reason: str
    unloaded: Unloaded | None = None


class RankPaused(FromGroup, frozen=True):
    """From each member, in answer to ``PauseGroup``: it paused after ``step``."""

    step: Count


class RankStalled(FromGroup, frozen=True):
    """From a rank that has waited ``waited_s`` for the others: for the sums of ``step`` (``summing``), or between steps
    for a gather or broadcast. Sent after the site's time-out, when the wait has doubled, and after ``ExamineGroup``.
    """

    step: Count
    waited_s: float
    summing: bool


class RankStepTimes(FromAgent, frozen=True):
    """From a worker to its agent, at most every ten seconds; forwarded with the next ``Heartbeat``."""

    trainer: Name
    times: StepTimes


class RankExamined(FromGroup, frozen=True):
    """Answer to ``ExamineGroup``. ``seen`` is a ``core.events.StallFinding``; ``detail`` is for people."""

    seen: str
    detail: str = ""


class CheckpointWritten(FromGroup, frozen=True):
    """A checkpoint was published (``path``) or failed (``error``); ``asked``: it was requested by ``WriteCheckpoint``.
    Writing took ``seconds``; one rank alone would need ``alone_s`` for all ``bytes``.
    """

    step: Count
    asked: bool
    path: str = ""
    error: str = ""
    seconds: float = 0.0
    bytes: Count = 0
    alone_s: float = 0.0


class ScriptChecked(FromAgent, frozen=True):
    """Answer to each ``CheckScript``: the result of ``pilot check``, with one line about it."""

    trainer: Name
    result: Literal["passed", "differs", "unchecked"]
    text: str


class Progress(FromGroup, frozen=True):
    """From the leader, at most once a second; see ``core.events.Progress``. Rows of ``ledger`` are (generation, epoch,
    step, step_end, cursor, cursor_end), a trial's ``reports`` are (number, value) of its study's metric.
    """

    step: Count
    epoch: Count
    samples: Count
    samples_per_s: float | None = None
    stall_s: float | None = None
    rescale_s: float | None = None
    ledger: list[tuple[Count, Count, Count, Count, Count, Count]] = []
    metrics: dict[str, float] = {}
    reports: list[tuple[Count, float]] = []


class TrainerFinished(FromGroup, frozen=True):
    """From the leader: the loop ended on all ranks after ``step``, and the final checkpoint is published."""

    step: Count
    samples: Count
    metrics: dict[str, float] = {}


class Remark(FromAgent, frozen=True):
    """A message for the user, such as why a checkpoint was skipped. ``holds``: what keeps a process whose script has
    ended.
    """

    trainer: Name
    text: str
    holds: bool = False


class Welcome(Message, frozen=True):
    """The agent is in the pool as ``node``; in a group, each node has ``rails`` rank processes."""

    node: str
    coordinator: str
    heartbeat_s: float
    silent_s: float
    orphan_s: float
    grace_s: float
    rails: Annotated[int, Meta(ge=1, le=8)] = 1
    check_limit_s: float = 120.0


class Forgotten(Message, frozen=True):
    """The pilot counts as lost: it ends all its processes, and unless it got a notice it may join as a new pilot."""

    reason: str


class HeartbeatSeen(Message, frozen=True):
    """Answer to ``Heartbeat``: the agent's lease of ``orphan_s`` starts at its ``sent_s``."""

    sent_s: float


class AreYouThere(Message, frozen=True):
    """The agent answers with ``Heartbeat`` at once: others wait for its node."""


class Refused(Message, frozen=True):
    """The peer is refused; it prints why and exits with status 2."""

    reason: str


class StartWorker(Message, frozen=True):
    """Start the training process of ``trainer``. See ``core.commands.StartWorker``.

    The worker neither writes to the ``directory`` of a trainer with another ``uid`` nor loads its checkpoints.
    ``directory`` has ``checkpoints/`` and ``logs/``. ``ranks`` training processes on the node are one worker.
    ``node_fabric``: how they sum, as set in the site file ("": depends on their device); ``between_nodes``: how they
    sum with those of other nodes. The node is number ``place`` of the ``replica_nodes`` of ``replica``.
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
    between_nodes: str = "mpi"
    replica: int = 0
    place: int = 0
    replica_nodes: int = 1


class JoinGroup(Message, frozen=True):
    """To each member: start the rank processes of node number ``node`` of ``nodes``. The previous generation trains on
    until the switch. See ``core.commands.FormGroup`` for ``saved_step`` and ``given_up``.
    """

    trainer: str
    generation: int
    node: int
    nodes: int
    saved_step: int = 0
    given_up: int = 0


class GroupAddresses(Message, frozen=True):
    """To each member: the contents of all ``RankAddress`` messages, ``endpoints`` by rank."""

    trainer: str
    generation: int
    puts: dict[str, str]
    endpoints: list[str]


class LeaveGroup(Message, frozen=True):
    """To a rank that is not in the next ``generation``: stop at the switch, and keep the state."""

    trainer: str
    generation: int


class Request(Message, frozen=True):
    """A verb of :mod:`pilot.protocol.requests` and its arguments."""

    verb: str
    arguments: dict[str, Any] = {}


class Reply(Message, frozen=True):
    """Answer to ``Request``: ``result``, or ``error`` with the CLI's exit status."""

    result: Any = None
    error: str = ""
    exit_status: int = 0


Order = (
    commands.StopWorker
    | commands.PauseGroup
    | commands.ExamineGroup
    | commands.DissolveGroup
    | commands.WriteCheckpoint
    | commands.SetCheckpointInterval
    | commands.CheckScript
    | commands.ReleaseNode
)
"""The core's commands that an agent carries out. They are sent as they are, in the journal's form."""

_FromCoordinator = Welcome | HeartbeatSeen | AreYouThere | Refused | Forgotten | StartWorker | ReplicaAddresses
_ToAgent = _FromCoordinator | JoinGroup | GroupAddresses | LeaveGroup
ToAgent = _ToAgent | Order
Sent = Message | Order

FROM_AGENT = tuple(kind for base in (FromAgent, FromGroup) for kind in base.__subclasses__() if kind is not FromGroup)
"""The classes of the messages that an agent sends."""

_encoder = msgspec.msgpack.Encoder()
_order_of = FromPlain[Order](Order)


def encode(message: Sent, event: int = 0) -> bytes:
    """Return one message as one frame. ``event``: the number of the journal entry that caused it; 0: none did."""
    if isinstance(message, Message) and not event:
        return _encoder.encode(message)
    data = msgspec.to_builtins(message, builtin_types=(bytes,)) if isinstance(message, Message) else plain(message)
    return _encoder.encode({**data, "event": event})


def _decoder(kind: Any, convert: Callable[[Any], Any] = lambda message: message) -> Callable[[bytes], Any]:
    """Return a function that decodes a frame of type ``kind``, and converts it; it raises :class:`ProtocolError`."""
    decoder = msgspec.msgpack.Decoder(kind)

    def decode(frame: bytes) -> Any:
        if len(frame) > MAX_FRAME_BYTES:
            raise ProtocolError(f"frame of {len(frame)} bytes is larger than {MAX_FRAME_BYTES}")
        try:
            return convert(decoder.decode(frame))
        except (msgspec.DecodeError, JournalError, RecursionError, UnicodeDecodeError) as error:
            raise ProtocolError(f"not a message of protocol {PROTOCOL}: {error}") from None

    return decode


def _caused(data: dict[str, Any]) -> tuple[ToAgent, int]:
    event = msgspec.convert(data.pop("event", 0), Count)
    return _order_of(data) if _order_of.knows(data) else msgspec.convert(data, _ToAgent), event


decode_credentials: Callable[[bytes], Credentials] = _decoder(Credentials)
decode_from_agent: Callable[[bytes], FromAgent] = _decoder(reduce(or_, FROM_AGENT))
decode_from_cli: Callable[[bytes], Request] = _decoder(Request)
decode_at_cli: Callable[[bytes], Reply | Refused] = _decoder(Reply | Refused)
decode_with_event: Callable[[bytes], tuple[ToAgent, int]] = _decoder(dict[str, Any], _caused)
decode_at_agent: Callable[[bytes], ToAgent] = _decoder(dict[str, Any], lambda data: _caused(data)[0])
