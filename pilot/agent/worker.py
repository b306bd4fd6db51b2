"""One worker: the training processes of one trainer on this node, acting as one.

A worker has one training process per rank of its node. The agent's state machine and the coordinator know only workers:
a worker's orders go to all of its processes, and their messages are forwarded as one.

    ``WorkerReady``, ``RankPaused``   forwarded when all have sent it
    ``RankStalled``                   in answer to ``ExamineGroup``: the best answer, when all have answered; of its own
                                      accord: at once
    anything else                     at once: one process sends it for all (rank 0 of the group), or for itself
    ``WriteCheckpoint``               goes to all: of a sharded model each has a part, else process 0 alone writes
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pilot.agent.events_effects import WorkerEnded
from pilot.agent.fork_client import ForkClient
from pilot.agent.shortage import when_possible
from pilot.core.errors import ProtocolError, UserError
from pilot.core.pool.evidence import TAIL_BYTES
from pilot.host import proc
from pilot.host.files import open_regular, tail
from pilot.protocol import wire
from pilot.protocol.framing import Frames, framed
from pilot.rundir import trainer_folder
from pilot.submission.submission import LaunchSpec


class LocalRanks:
    """``size`` training processes, numbered from 0."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._senders: dict[tuple[type, int], set[int]] = {}
        self._answers: dict[int, wire.RankStalled] | None = None

    def combine(self, process: int, message: wire.FromAgent) -> wire.FromAgent | None:
        """Return the worker's message, now that ``process`` has sent ``message``; None: others must send theirs."""
        match message:
            case wire.WorkerReady():
                return message if self._all_sent(process, (wire.WorkerReady, 0)) else None
            case wire.RankPaused(_, generation):
                return message if self._all_sent(process, (wire.RankPaused, generation)) else None
            case wire.RankStalled() if self._answers is not None:
                self._answers[process] = message
                all_answered = len(self._answers) == self._size
                return min(self._answers.values(), key=lambda answer: answer.waited_s) if all_answered else None
        return message

    def begin_examination(self) -> None:
        """Take each process's next ``RankStalled`` for its answer to an ``ExamineGroup``."""
        self._answers = {}

    def end_examination(self) -> None:
        """Forward later messages at once: they do not belong to the examination."""
        self._answers = None

    def silent(self) -> list[int]:
        """The processes that have not answered the last ``ExamineGroup``."""
        return [process for process in range(self._size) if process not in (self._answers or {})]

    def _all_sent(self, process: int, what: tuple[type, int]) -> bool:
        senders = self._senders.setdefault(what, set())
        senders.add(process)
        if len(senders) < self._size:
            return False
        del self._senders[what]
        return True


@dataclass(slots=True)
class TrainingProcess:
    """One training process, from the order to its end. ``uid`` is its trainer's, ``begin`` is where its part of the log
    starts, ``server`` identifies its fork server.
    """

    number: int
    rank: int
    server: ForkClient
    control: WorkerSocket
    log: Path
    uid: str
    begin: int
    pid: int = 0
    doomed: bool = False

    def kill(self) -> None:
        """Kill it and everything that it started; if it is not forked yet, as soon as it is."""
        self.doomed = True
        kill_session(self.pid)

    def wake(self) -> None:
        """Have the process read its orders, although its script is past the loop (see
        ``pilot.train.ranks.script_end``).
        """
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def write(self, line: str) -> None:
        """Add a line to its log."""
        with (
            suppress(OSError),
            trainer_folder.held(self.log.parent, self.uid) as logs,
            (logs / self.log.name).open("a") as log,
        ):
            log.write(line)

    def last_words(self) -> str:
        """The last lines that it wrote."""
        try:
            with trainer_folder.held(self.log.parent, self.uid) as logs, (logs / self.log.name).open("rb") as file:
                rotated = file.seek(0, os.SEEK_END) < self.begin
                return tail(file, TAIL_BYTES, 0 if rotated else self.begin)
        except OSError:
            return ""


@dataclass(slots=True)
class NodeWorker:
    """The training processes of one trainer on this node, by local rank. ``store``: where they meet; ``end``: how the
    first of them ended.
    """

    order: wire.StartWorker
    local_ranks: LocalRanks
    store: Path
    processes: list[TrainingProcess] = field(default_factory=list)
    stopping: bool = False
    end: WorkerEnded | None = None


def check_launch(launch: LaunchSpec) -> None:
    """Check what can be checked before the start; UserError in one line, OSError if its code cannot be read now."""
    if not Path(launch.cwd).is_dir():
        raise UserError(f"no directory {launch.cwd} on this node")
    if not os.access(launch.python, os.X_OK):
        raise UserError(f"no interpreter {launch.python} on this node")
    if launch.archive:
        open_regular(Path(launch.archive)).close()
    else:
        _check_unedited(launch)


def _check_unedited(launch: LaunchSpec) -> None:
    script = Path(launch.cwd, launch.script)
    try:
        content = script.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read script {script} on this node: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != launch.script_sha256:
        raise UserError(f"script {script} was edited since it was submitted (its sha256 differs): submit it again")


def kill_session(pid: int) -> None:
    """Kill a training process's session and all its descendants, as soon as there are descriptors to find them."""
    if pid:
        when_possible(lambda: proc.kill([*proc.tree(pid), *proc.session(pid)]))


_PIECE_BYTES = 1 << 16


class WorkerSocket:
    """Reads whenever the event loop reports something to read.

    Parameters
    ----------
    connection : one end of a stream socket pair; owned from now on
    received : called with each message
    broken : called once if something other than a message arrived; nothing is read after that
    """

    def __init__(
        self, connection: socket.socket, received: Callable[[wire.FromAgent], None], broken: Callable[[str], None]
    ) -> None:
        self._socket = connection
        self._socket.setblocking(False)
        self._received = received
        self._broken = broken
        self._frames = Frames(wire.MAX_FRAME_BYTES)
        self.gone = False
        asyncio.get_running_loop().add_reader(connection, self.drain)

    def send(self, message: wire.Sent) -> bool:
        """Send at once; False if the worker has closed its end (``gone``), or has not read for so long that the socket
        is full.
        """
        data = framed(wire.encode(message))
        try:
            return self._socket.send(data) == len(data)
        except BlockingIOError:
            return False
        except OSError:
            self.gone = True
            return False

    def drain(self) -> None:
        """Read everything that has arrived."""
        while (piece := self._piece()) is not None:
            if not piece:
                asyncio.get_running_loop().remove_reader(self._socket)
                return
            try:
                self._take_messages(piece)
            except ProtocolError as error:
                self.close()
                self._broken(str(error))
                return

    def close(self) -> None:
        """Close; a running worker exits then."""
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()

    def _piece(self) -> bytes | None:
        try:
            return self._socket.recv(_PIECE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _take_messages(self, piece: bytes) -> None:
        for frame in self._frames.feed(piece):
            message = wire.decode_from_agent(frame)
            if isinstance(message, wire.Request | wire.Hello):
                raise ProtocolError(f"a worker must not send {type(message).__name__}")
            self._received(message)
