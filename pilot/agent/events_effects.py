"""The events of the agent's state machine (past tense) and its effects (imperative). All frozen.

What is only passed on, and orders that are carried out as they came, are messages (:mod:`pilot.protocol.wire`).
"""

from __future__ import annotations

from dataclasses import dataclass

from pilot.core.commands import CheckScript, DissolveGroup
from pilot.core.ids import Generation, TrainerId
from pilot.protocol import wire

# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CoordinatorMessage:
    """The coordinator sent ``message``."""

    message: wire.ToAgent


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """The worker of ``trainer`` sent ``message``."""

    trainer: str
    message: wire.FromAgent


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """The process has ended. ``status`` is its exit status, or minus the signal; ``tail`` has the last lines of its
    log.

    ``status`` None: it could not be started, and ``tail`` says why; ``unread``: because of what cannot be read or
    opened now. ``out_of_memory``: the kernel has just killed a process here for lack of memory.
    """

    trainer: str
    status: int | None
    tail: str
    log: str = ""
    unread: bool = False
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class RankEnded:
    """The rank process of a generation has ended without our order. ``tail``: the last lines that it printed."""

    trainer: str
    generation: int
    status: int
    tail: str


@dataclass(frozen=True, slots=True)
class ProcessFailed:
    """The worker of ``trainer`` (``generation`` 0) or a rank process is of no use, because of ``reason``."""

    trainer: str
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Watched:
    """Completes ``Watch``: whether the worker of ``trainer`` made progress, and what was seen, in words."""

    trainer: str
    progress: bool
    text: str


@dataclass(frozen=True, slots=True)
class CoordinatorLost:
    """The connection closed; the client is trying to reconnect."""


@dataclass(frozen=True, slots=True)
class PoolOver:
    """The pool will not come back, because of ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


Event = (
    CoordinatorMessage
    | WorkerMessage
    | WorkerEnded
    | RankEnded
    | wire.RankAddress
    | wire.RankJoined
    | wire.PeersUnreached
    | ProcessFailed
    | Watched
    | wire.Noticed
    | CoordinatorLost
    | PoolOver
    | Ticked
)


# --- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send to the coordinator; queued until there is one."""

    message: wire.Message


@dataclass(frozen=True, slots=True)
class SendToWorker:
    """Send to the worker of ``trainer``."""

    trainer: str
    message: wire.Sent


def dissolved(trainer: str, generation: int, reason: str) -> SendToWorker:
    """SendToWorker the worker of ``trainer`` that the generation is over here."""
    return SendToWorker(trainer, DissolveGroup(TrainerId(trainer), Generation(generation), (), reason))


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Kill the worker and everything that it started. ``WorkerEnded`` follows."""

    trainer: str


@dataclass(frozen=True, slots=True)
class Watch:
    """Watch the worker of ``trainer`` for a moment. ``Watched`` follows, unless it ends."""

    trainer: str


@dataclass(frozen=True, slots=True)
class KillRank:
    """Kill this node's rank process of a generation, and remove its segment."""

    trainer: str
    generation: int


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line for the agent's log."""

    text: str


@dataclass(frozen=True, slots=True)
class Exit:
    """Kill everything, leave nothing behind, exit with ``status``; ``again``: and start again as another pilot."""

    status: int
    reason: str
    again: bool = False


Effect = (
    Send
    | SendToWorker
    | wire.StartWorker
    | wire.JoinGroup
    | wire.GroupAddresses
    | CheckScript
    | KillWorker
    | Watch
    | KillRank
    | LogLine
    | Exit
)
"""An order as an effect is to be carried out here. ``StartWorker`` completes with ``WorkerEnded``, sooner or later.
``RankAddress`` follows ``JoinGroup`` if there are others, and ``RankEnded`` when the rank process ends, unless we kill
it. ``WorkerMessage``, with a ``ScriptChecked``, follows ``CheckScript`` unless the worker ends.
"""
