"""The workers of an agent: forked warm, spoken with over their control sockets, watched to their end."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pilot.agent import facts, warm
from pilot.agent.control import Control
from pilot.agent.forks import ForkServer
from pilot.agent.home import Home
from pilot.agent.vocabulary import Said, WorkerEnded
from pilot.core.errors import UserError
from pilot.io import proc
from pilot.io.wire import FromAgent, LaunchWorker, Message

log = logging.getLogger(__name__)

_TAIL_BYTES = 8192


@dataclass(slots=True)
class _Life:
    """One worker process, from the order to its end. ``begin`` is where its part of the log starts."""

    number: int
    trainer: str
    python: str
    control: Control
    log: Path
    begin: int
    pid: int = 0
    doomed: bool = False


@dataclass(slots=True)
class Workers:
    """At most one worker per trainer. ``emit`` is told what they say and when they end."""

    home: Home
    emit: Callable[[Said | WorkerEnded], None]
    node: str = "node"
    silent_s: float = math.inf
    _lives: dict[str, _Life] = field(default_factory=dict)
    _servers: dict[str, ForkServer] = field(default_factory=dict)
    _count: int = 0

    def warm_up(self, python: str = sys.executable) -> ForkServer:
        """The fork server of an interpreter, started if there is none."""
        if python not in self._servers:
            self._servers[python] = ForkServer(self.home, python, partial(self._heard, python))
        return self._servers[python]

    def launch(self, order: LaunchWorker) -> None:
        """Start the worker; an order that cannot be carried out ends as a worker that could not be started."""
        try:
            self._launch(order)
        except (OSError, ValueError, UserError) as error:
            self.emit(WorkerEnded(order.trainer, None, str(error)))

    def tell(self, trainer: str, message: Message) -> None:
        """Send to the worker; one that takes nothing any more is killed."""
        life = self._lives.get(trainer)
        if life is not None and not life.control.send(message):
            self.kill(trainer)

    def kill(self, trainer: str) -> None:
        """Kill the worker with all that it started."""
        life = self._lives.get(trainer)
        if life is not None:
            life.doomed = True
            _kill_session(life.pid)

    def socket_of(self, trainer: str) -> Path | None:
        """Where the worker listens for its rank processes."""
        life = self._lives.get(trainer)
        return self.home.socket(life.number) if life is not None else None

    def pids(self) -> Iterator[tuple[str, int]]:
        """(trainer, pid) of the workers that have been forked."""
        return ((life.trainer, life.pid) for life in self._lives.values() if life.pid)

    def server_pids(self) -> list[int]:
        """The fork servers."""
        return [server.pid for server in self._servers.values()]

    def end_server(self, pid: int) -> None:
        """A fork server that does not answer is killed: the next worker gets a new one."""
        for server in [server for server in self._servers.values() if server.pid == pid]:
            log.warning("the fork server of %s was stopped for too long: killed", server.python)
            server.kill()

    def reaped(self, pid: int, status: int) -> None:
        """An orphan ended: a worker whose fork server is gone has become the agent's own child."""
        for life in [life for life in self._lives.values() if life.pid == pid]:
            self._ended(life, os.waitstatus_to_exitcode(status))

    def close(self) -> None:
        """Kill everything, and say nothing of it."""
        for life in self._lives.values():
            life.control.close()
            _kill_session(life.pid)
        for server in self._servers.values():
            server.close()

    # --- starting ---------------------------------------------------------------------------------------------------

    def _launch(self, order: LaunchWorker) -> None:
        _check(order)
        path = Path(order.directory, "logs", f"{self.node}.log")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        server = self.warm_up(order.python)
        self._count += 1
        packet = warm.encode(self._job(order))
        ours, theirs = socket.socketpair()
        with theirs, path.open("ab") as file:
            server.launch(packet, [theirs.fileno(), file.fileno()])
            begin = file.tell()
        control = Control(ours, partial(self._said, order.trainer), partial(self._nonsense, order.trainer))
        self._lives[order.trainer] = _Life(self._count, order.trainer, order.python, control, path, begin)

    def _job(self, order: LaunchWorker) -> warm.Job:
        ours = {
            "PILOT_WORKER_SOCKET": str(self.home.socket(self._count)),
            "PILOT_TRAINER": order.trainer,
            "PILOT_TRAINER_DIR": order.directory,
            "PILOT_CHECKPOINT_INTERVAL_S": str(order.checkpoint_interval_s),
            "PILOT_CHECKPOINTS_KEPT": str(order.checkpoints_kept),
            "PILOT_SILENT_S": str(self.silent_s),
        }
        environment = order.environment | ours
        return warm.Job(self._count, order.script, order.arguments, order.cwd, environment, facts.threads())

    def _said(self, trainer: str, message: FromAgent) -> None:
        self.emit(Said(trainer, message))

    def _nonsense(self, trainer: str, why: str) -> None:
        log.warning("%s: killing its worker: %s", trainer, why)
        self.kill(trainer)

    # --- what the fork servers report -------------------------------------------------------------------------------

    def _heard(self, python: str, kind: str, fields: list[object]) -> None:
        match kind, fields:
            case "ready", [float(seconds), int(threads)]:
                log.info("%s is warm after %.1f s", python, seconds)
                if threads > 1:
                    log.warning("%s runs %d threads after its imports; forked workers may hang", python, threads)
            case "forked", [int(number), int(pid)]:
                self._forked(number, pid)
            case "exited", [int(number), int(status)]:
                for life in [life for life in self._lives.values() if life.number == number]:
                    self._ended(life, status)
            case "failed", [str(why)]:
                self._give_up(python, None, f"{python} cannot run pilot.train: {why} (install this package there)")
            case "gone", [int(status)] if status < 0:
                log.warning("the fork server of %s was killed; its workers live on", python)
                self._give_up(python, status, "its fork server was killed")
            case "gone", [int(status)]:
                self._give_up(python, None, f"{python} cannot run pilot.train: it ended with status {status}")

    def _forked(self, number: int, pid: int) -> None:
        for life in [life for life in self._lives.values() if life.number == number]:
            life.pid = pid
            if life.doomed:
                _kill_session(pid)

    def _give_up(self, python: str, status: int | None, why: str) -> None:
        """Its fork server is of no use any more. Workers that it forked live on; the others never came to be."""
        self._servers.pop(python, None)
        for life in [life for life in self._lives.values() if life.python == python and not life.pid]:
            del self._lives[life.trainer]
            life.control.close()
            self.emit(WorkerEnded(life.trainer, status, why))

    def _ended(self, life: _Life, status: int) -> None:
        life.control.drain()
        life.control.close()
        _kill_session(life.pid)
        del self._lives[life.trainer]
        self.home.socket(life.number).unlink(missing_ok=True)
        self.emit(WorkerEnded(life.trainer, status, _tail(life.log, life.begin), str(life.log)))


def _check(order: LaunchWorker) -> None:
    """What can be known before the start; UserError in one line."""
    script = Path(order.cwd, order.script)
    if not Path(order.cwd).is_dir():
        raise UserError(f"no directory {order.cwd} on this node")
    try:
        content = script.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read script {script} on this node: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != order.script_sha256:
        raise UserError(f"script {script} was edited since it was submitted (its sha256 differs): submit it again")
    if not os.access(order.python, os.X_OK):
        raise UserError(f"no interpreter {order.python} on this node")


def _kill_session(pid: int) -> None:
    """The worker leads a session: whatever it started is in it, or descends from it."""
    if pid:
        proc.kill(proc.tree(pid))
        proc.kill(proc.session(pid))


def _tail(path: Path, begin: int) -> str:
    """The last lines that this life wrote."""
    try:
        with path.open("rb") as file:
            file.seek(max(begin, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
