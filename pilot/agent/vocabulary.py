"""What the agent's state machine is told (past tense) and what it asks for (imperative). All frozen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pilot.io import wire


class Role(StrEnum):
    """What a process of a group is."""

    MPIEXEC = "mpiexec"
    PROXY = "proxy"


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ordered:
    """The coordinator sent ``message``."""

    message: wire.ToAgent


@dataclass(frozen=True, slots=True)
class Said:
    """The worker of ``trainer`` sent ``message``."""

    trainer: str
    message: wire.FromAgent


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """The process is gone. ``status`` is its exit status, or minus the signal; ``tail`` the last lines of its log.

    ``status`` None: it could not be started, and ``tail`` says why.
    """

    trainer: str
    status: int | None
    tail: str
    log: str = ""


@dataclass(frozen=True, slots=True)
class GroupProcessEnded:
    """``mpiexec`` or the proxy of a generation is gone without having been killed by us."""

    trainer: str
    generation: int
    role: Role
    status: int
    tail: str


@dataclass(frozen=True, slots=True)
class ProxiesNamed:
    """Our ``mpiexec`` printed its proxy commands, one per rank."""

    trainer: str
    generation: int
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stopped:
    """A process was in state T for ``stopped_s``: the worker of ``trainer`` (``generation`` 0) or a rank process."""

    trainer: str
    generation: int
    stopped_s: float


@dataclass(frozen=True, slots=True)
class Watched:
    """Answers ``Watch``: whether the worker of ``trainer`` made progress meanwhile, and what was seen, in words."""

    trainer: str
    progress: bool
    text: str


@dataclass(frozen=True, slots=True)
class Noticed:
    """The node will be taken: a signal or the wall time's end."""

    cause: str


@dataclass(frozen=True, slots=True)
class CoordinatorLost:
    """The connection closed; another one is being tried."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


Event = (
    Ordered
    | Said
    | WorkerEnded
    | GroupProcessEnded
    | ProxiesNamed
    | Stopped
    | Watched
    | Noticed
    | CoordinatorLost
    | Ticked
)


# --- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """To the coordinator; kept until there is one."""

    message: wire.Message


@dataclass(frozen=True, slots=True)
class Tell:
    """To the worker of ``trainer``."""

    trainer: str
    message: wire.Message


@dataclass(frozen=True, slots=True)
class SpawnWorker:
    """Start a worker. Completes with ``WorkerEnded``, sooner or later."""

    message: wire.StartWorker


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Kill the worker and all that it started. ``WorkerEnded`` follows."""

    trainer: str


@dataclass(frozen=True, slots=True)
class Watch:
    """Watch the worker of ``trainer`` for a moment. ``Watched`` follows, unless it ends."""

    trainer: str


@dataclass(frozen=True, slots=True)
class RunMpiexec:
    """Lead a group. ``ProxiesNamed`` or ``GroupProcessEnded`` follows."""

    message: wire.LeadGroup


@dataclass(frozen=True, slots=True)
class RunProxy:
    """Join a group. ``GroupProcessEnded`` follows, unless it is killed."""

    message: wire.JoinGroup


@dataclass(frozen=True, slots=True)
class KillGeneration:
    """Kill this agent's processes of a generation, rank processes included, and remove their segments."""

    trainer: str
    generation: int


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line for the agent's log."""

    text: str


@dataclass(frozen=True, slots=True)
class Exit:
    """Kill all that runs, leave nothing, end with ``status``."""

    status: int
    reason: str


Effect = Send | Tell | SpawnWorker | KillWorker | Watch | RunMpiexec | RunProxy | KillGeneration | LogLine | Exit
