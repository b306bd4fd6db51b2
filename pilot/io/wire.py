"""Messages between the coordinator, the agents and the CLI: msgspec structs in MessagePack, never pickle.

One frame is one message. Decoding is strict: an unknown tag, a missing or mistyped field, or an oversized frame raises
:class:`ProtocolError`, and the peer is refused. A peer's first message is :class:`Credentials`; what it may send after
them is its role's. Secrets travel inside (TLS encrypts), never in arguments or the environment.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec

from pilot.core.errors import ProtocolError

PROTOCOL = 6
"""Incremented with every incompatible change; peers with another number are refused."""

MAX_FRAME_BYTES = 8 * 1024 * 1024


Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""What peers count: a whole number that every reader of JSON keeps, and that sums do not overflow."""

Rails = Annotated[int, msgspec.Meta(ge=1, le=8)]
"""Rank processes of a node, see :mod:`pilot.comm.rails`."""

Text = Annotated[str, msgspec.Meta(max_length=1000)]
"""What people read of a run."""

Name = Annotated[str, msgspec.Meta(max_length=256)]


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages; the tag is the class name."""


# --- anybody -> coordinator -----------------------------------------------------------------------------------------


class Credentials(Message, frozen=True):
    """First message of every peer. Its fields and its name stay as they are in every later protocol."""

    protocol: int
    version: str
    token: str


# --- agent -> coordinator -------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First message of an agent after its credentials, on its first connection and after every reconnection.

    ``pilot`` names this life of the pilot (unique) and ends in ``tokens.life_name(secret)``; ``address`` is where other
    nodes reach it for MPI, ``job`` and ``restart`` are the batch scheduler's job id and restart count ("" and 0 where
    there is none). ``walltime_end_s`` is in Unix time. ``workers`` tells which trainers' processes run on it, as
    (trainer, its uid, generation or 0, step, ready).
    """

    pilot: str
    secret: str
    host: str
    address: str
    pid: Count
    job: str = ""
    restart: Count = 0
    walltime_end_s: float | None = None
    workers: list[tuple[Name, Name, Count, Count, bool]] = []


class Heartbeat(Message, frozen=True):
    """Every ``heartbeat_s``: the agent is alive. ``sent_s`` is on its own clock."""

    sent_s: float


class Leaving(Message, frozen=True):
    """The pilot got a notice (a signal, its wall time's end): it will be gone within ``grace_s``."""

    cause: str
    grace_s: float


class WorkerReady(Message, frozen=True):
    """The worker of ``trainer`` is warm: imported, model built, waiting for a group."""

    trainer: Name
    warm_s: float


class WorkerExited(Message, frozen=True):
    """The worker of ``trainer`` ended. ``cause`` is an ``ExitCause``; ``detail`` is for people (signal, last lines)."""

    trainer: Name
    cause: str
    detail: str = ""
    log: str = ""


class RankAddress(Message, frozen=True):
    """From each member while its group forms: what its rank process has put (PMI) for the others to find it by.

    A rank that is alone has nobody to be found by, and may say nothing.
    """

    trainer: Name
    generation: Count
    puts: dict[str, str]


class GroupFormed(Message, frozen=True):
    """From the leader: the group of ``generation`` trains from ``step`` on. See ``core.events.GroupFormed``."""

    trainer: Name
    generation: Count
    step: Count
    resumed: Count | None = None
    identity: dict[Name, Text] = {}
    accepted: list[tuple[Count, Name, Text, Text]] = []


class GroupBroken(Message, frozen=True):
    """From any member: the group of ``generation`` cannot go on (a rank process died, forming failed)."""

    trainer: Name
    generation: Count
    reason: str


class RankPaused(Message, frozen=True):
    """From each member: it stopped after ``step`` as ``PauseGroup`` asked."""

    trainer: Name
    generation: Count
    step: Count


class RankStalled(Message, frozen=True):
    """From a rank: it has waited ``waited_s`` for the others; at the site's time-out, each time that this has doubled,
    and in answer to ``LookAtGroup``. ``summing``: for the sums of ``step``; else for what a gather or a
    spread brings, between two steps or at the group's start.
    """

    trainer: Name
    generation: Count
    step: Count
    waited_s: float
    summing: bool


class RankLookedAt(Message, frozen=True):
    """Answers ``LookAtGroup``. ``seen`` is a ``core.events.Seen``; ``detail`` is for people."""

    trainer: Name
    generation: Count
    seen: str
    detail: str = ""


class CheckpointWritten(Message, frozen=True):
    """A checkpoint was published (``path``) or failed (``error``); ``asked`` where ``WriteCheckpoint`` asked for it.

    ``seconds`` is what writing took, ``alone_s`` what it takes one rank to write all ``bytes`` by itself.
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


class Progress(Message, frozen=True):
    """At most one a second, from the leader: see ``core.events.Progress``.

    ``ledger`` rows are (generation, epoch, step, step_end, cursor, cursor_end). ``reports``, of a trial, are (number,
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
    """Something that the user should see: a skipped checkpoint and why, a script that reports no progress."""

    trainer: Name
    text: str


# --- coordinator -> agent -------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """The agent is in the pool as ``node``. All times in seconds. ``rails``: rank processes of each node in a group."""

    node: str
    coordinator: str
    heartbeat_s: float
    silent_s: float
    orphan_s: float
    grace_s: float
    rails: Rails = 1


class Heard(Message, frozen=True):
    """Answers ``Heartbeat``: the agent's lease, ``orphan_s`` long, runs from its ``sent_s``."""

    sent_s: float


class Refused(Message, frozen=True):
    """The peer is refused; it prints why and ends with exit status 2."""

    reason: str


class StartWorker(Message, frozen=True):
    """Start the training process of ``trainer``. See ``core.commands.StartWorker``.

    ``environment`` holds the variables that the user named. ``script_sha256`` guards against an edited script.
    ``directory`` is the trainer's own folder in the run directory (``checkpoints/`` and ``logs/`` are in it).
    ``ranks`` training processes run on the node and are one worker. ``uid`` is the trainer's: nothing is written to
    another one's folder, and no checkpoint of another one is loaded. ``umask`` is for the files that the script makes.
    ``code`` is the zip file of the script's code as it was submitted ("": it is read where it is); ``script_sha256``
    counts only without it.
    ``patience_s``: see ``core.spec.TrainerSpec``. ``ddp``: it is a script for ``torchrun``. ``node_fabric``: how the
    node's processes sum, as the site says ("": by their device).
    """

    trainer: str
    script: str
    script_sha256: str
    arguments: list[str]
    cwd: str
    python: str
    environment: dict[str, str]
    directory: str
    checkpoint_interval_s: float
    checkpoints_kept: int
    ranks: int = 1
    uid: str = ""
    code: str = ""
    patience_s: float = math.inf
    umask: int = 0o077
    ddp: bool = False
    node_fabric: str = ""


class StopWorker(Message, frozen=True):
    """End the training process of ``trainer`` (TERM, then KILL). See ``core.commands.StopWorker``."""

    trainer: str
    reason: str
    within_s: float = 0.0


class JoinGroup(Message, frozen=True):
    """To each member: have a rank process be rank ``rank``. ``previous`` (0: none) trains on until the switch.

    Checkpoints of generations up to ``granted`` may be loaded.
    """

    trainer: str
    generation: int
    rank: int
    size: int
    previous: int
    granted: int


class GroupAddresses(Message, frozen=True):
    """To each member, when all have sent their ``RankAddress``: what all of them have put."""

    trainer: str
    generation: int
    puts: dict[str, str]


class PartFromGroup(Message, frozen=True):
    """To a rank of the group that trains which is not in ``generation``: at the switch, stop and hold your state."""

    trainer: str
    generation: int


class PauseGroup(Message, frozen=True):
    """To each member of the group that trains: stop after the same step."""

    trainer: str
    generation: int


class LookAtGroup(Message, frozen=True):
    """To each member: look at your worker of ``trainer``, which others wait for. See ``core.commands.LookAtGroup``.

    The agent hands it on: a worker at a safe point, or in the wait for the others, answers ``RankStalled``.
    """

    trainer: str
    generation: int
    kill: bool


class DissolveGroup(Message, frozen=True):
    """Kill the rank processes of ``generation``. See ``core.commands.DissolveGroup``."""

    trainer: str
    generation: int
    reason: str


class WriteCheckpoint(Message, frozen=True):
    """Write and publish a checkpoint of the state that the (paused or parked) worker of ``trainer`` holds."""

    trainer: str
    reason: str


class PaceCheckpoints(Message, frozen=True):
    """To the leader: begin a checkpoint every ``checkpoint_interval_s`` from now on."""

    trainer: str
    checkpoint_interval_s: float


class ReleaseNode(Message, frozen=True):
    """Leave cleanly, now: stop everything, leave nothing behind, exit 0.

    ``again``: the pilot counts as lost; it may come back as a new one, unless it was given notice.
    """

    reason: str
    again: bool = False


# --- CLI <-> coordinator --------------------------------------------------------------------------------------------


class Request(Message, frozen=True):
    """One call of the CLI: a verb of ``live.api`` and its arguments."""

    verb: str
    arguments: dict[str, Any] = {}


class Reply(Message, frozen=True):
    """The answer: ``result``, or ``error`` with the exit status that the CLI ends with."""

    result: Any = None
    error: str = ""
    exit_status: int = 0


FromAgent = (
    Hello
    | Heartbeat
    | Leaving
    | WorkerReady
    | WorkerExited
    | RankAddress
    | GroupFormed
    | GroupBroken
    | RankPaused
    | RankStalled
    | RankLookedAt
    | CheckpointWritten
    | Progress
    | TrainerFinished
    | Remark
)
ToAgent = (
    Welcome
    | Heard
    | Refused
    | StartWorker
    | StopWorker
    | JoinGroup
    | GroupAddresses
    | PartFromGroup
    | PauseGroup
    | LookAtGroup
    | DissolveGroup
    | WriteCheckpoint
    | PaceCheckpoints
    | ReleaseNode
)

_encoder = msgspec.msgpack.Encoder()
_credentials = msgspec.msgpack.Decoder(Credentials)
_from_agent = msgspec.msgpack.Decoder(FromAgent)
_from_cli = msgspec.msgpack.Decoder(Request)
_to_agent = msgspec.msgpack.Decoder(ToAgent)
_to_cli = msgspec.msgpack.Decoder(Reply | Refused)


def encode(message: Message) -> bytes:
    """One message as one frame."""
    return _encoder.encode(message)


def decode_credentials(frame: bytes) -> Credentials:
    """Decode what a peer sent first; :class:`ProtocolError` where it is something else."""
    message: Credentials = _decode(_credentials, frame)
    return message


def decode_from_agent(frame: bytes) -> FromAgent:
    """Decode what an agent sent; :class:`ProtocolError` where it is not one of an agent's messages."""
    message: FromAgent = _decode(_from_agent, frame)
    return message


def decode_from_cli(frame: bytes) -> Request:
    """Decode what the CLI sent."""
    message: Request = _decode(_from_cli, frame)
    return message


def decode_at_agent(frame: bytes) -> ToAgent:
    """Decode what the coordinator sent to an agent."""
    message: ToAgent = _decode(_to_agent, frame)
    return message


def decode_at_cli(frame: bytes) -> Reply | Refused:
    """Decode what the coordinator sent to the CLI."""
    message: Reply | Refused = _decode(_to_cli, frame)
    return message


def _decode(decoder: msgspec.msgpack.Decoder[Any], frame: bytes) -> Any:
    if len(frame) > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame of {len(frame)} bytes is larger than {MAX_FRAME_BYTES}")
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"not a message of protocol {PROTOCOL}: {error}") from None
