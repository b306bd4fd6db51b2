"""The workers of an agent: forked warm, controlled over their sockets, watched to their end."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pilot.agent.events_effects import WorkerEnded, WorkerMessage
from pilot.agent.fork_client import ForkClient, environment_for
from pilot.agent.script_check import ScriptCheck
from pilot.agent.shortage import when_possible
from pilot.agent.workdir import Workdir
from pilot.agent.worker import LocalRanks, NodeWorker, TrainingProcess, WorkerSocket, check_launch, kill_session
from pilot.core.commands import ExamineGroup, StopWorker
from pilot.core.errors import UserError
from pilot.host import private_folder, proc
from pilot.host.system import oom_kills, usable_cores
from pilot.protocol import wire
from pilot.protocol.gate import OUT_OF
from pilot.rundir import trainer_folder
from pilot.submission.installed import VARIABLE as IMPORTS
from pilot.submission.installed import imports_file
from pilot.submission.submission import ForkJob

log = logging.getLogger(__name__)

_SOCKET = "PILOT_WORKER_SOCKET"
"""The variable that identifies a training process, in its environment and in those of its descendants."""
_BACKENDS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""The variables with the interface that torch's backends use and listen on."""

_NCCL = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": "30",
}
"""torch's watchdog would end a process that waits for a lost peer; we notice the loss, and abort. A communicator that
connects cannot be aborted before the time limit (in seconds).
"""

_LEAVING_S = 10.0
"""The time that a training process may take to exit after closing its control socket."""


@dataclass(slots=True)
class Workers:
    """At most one worker per trainer. ``emit`` is called with their messages and ends; ``address`` is this node's, on
    the first of ``interfaces``.

    The training processes of a worker act as one and end together: unless they were ordered to stop, all end with the
    first. ``imports`` is the folder of the imports of earlier scripts, by interpreter; None: nothing is preloaded.
    ``checks`` is the folder of earlier checks' results; None: in ``workdir``.
    """

    workdir: Workdir
    emit: Callable[[WorkerMessage | WorkerEnded], None]
    address: str
    interfaces: Sequence[str]
    node: str = "node"
    silent_s: float = math.inf
    check_limit_s: float = math.inf
    imports: Path | None = None
    checks: Path | None = None
    _checks: set[ScriptCheck] = field(default_factory=set)
    _workers: dict[str, NodeWorker] = field(default_factory=dict)
    _servers: dict[tuple[str, bool], ForkClient] = field(default_factory=dict)
    _unfit: dict[str, list[str]] = field(default_factory=dict)
    _count: int = 0
    _oom_kills: deque[int] = field(default_factory=lambda: deque(maxlen=3))

    def warm_up(self, python: str = sys.executable, *, bare: bool = False) -> ForkClient:
        """The fork server of an interpreter, started if there is none; ``bare``: one that preloads nothing."""
        key = python, bare
        if key not in self._servers:
            self._servers[key] = ForkClient(self.workdir, python, partial(self._from_server, key))
            self._preload(python)
        return self._servers[key]

    def _preload(self, python: str) -> None:
        """Have the fork server preload the imports of earlier scripts."""
        if self.imports is not None and (server := self._servers.get((python, False))) is not None:
            server.preload(imports_file(self.imports, python), self._unfit.get(python, []))

    def launch(self, order: wire.StartWorker) -> None:
        """Start the worker; if that is impossible, it is reported as a worker that could not be started."""
        worker = self._workers[order.trainer] = NodeWorker(
            order, LocalRanks(order.ranks), self.workdir.store(self._count + 1)
        )
        try:
            self._launch(worker)
        except (OSError, ValueError, UserError) as error:
            if isinstance(error, OSError) and error.errno in OUT_OF and not worker.processes:
                del self._workers[order.trainer]
                raise  # and it is tried again
            self._end(worker, _not_started(order.trainer, error))

    def send(self, trainer: str, message: wire.Sent) -> None:
        """Send to the worker; a process that no longer reads is killed. One that has closed its end is exiting: how it
        ends shows whose fault that is, so it gets time to do so.
        """
        worker = self._workers.get(trainer)
        if worker is None or (isinstance(message, wire.ReplicaAddresses) and message.replica != worker.order.replica):
            return
        at_once = worker.stopping and isinstance(message, StopWorker) and not message.within_s
        worker.stopping |= isinstance(message, StopWorker)
        if isinstance(message, ExamineGroup):
            worker.local_ranks.begin_examination()
        for process in worker.processes:
            if not process.control.send(message):
                if process.control.gone:
                    asyncio.get_running_loop().call_later(_LEAVING_S, self._kill_late, worker, process)
                else:
                    process.kill()
            elif at_once:
                process.wake()

    def check(self, trainer: str) -> None:
        """Check the script of the worker beside it, if it is here; the result is emitted as the worker's message."""
        worker = self._workers.get(trainer)
        if worker is None:
            return
        order, environment = worker.order, environment_for(self.workdir, worker.order.launch.python)
        done = partial(self._checked, worker)
        check = ScriptCheck(order, self.check_limit_s, environment, self.checks or self.workdir.path / "checks", done)
        self._checks.add(check)
        check.task.add_done_callback(lambda _: self._checks.discard(check))

    def _checked(self, worker: NodeWorker, found: wire.ScriptChecked) -> None:
        for process in worker.processes[:1]:
            process.write(f"pilot: pilot check of its script: {found.result}: {found.text}\n")
        self.emit(WorkerMessage(worker.order.trainer, found))

    def _end_checks(self, of: Container[str]) -> None:
        for check in [check for check in self._checks if check.trainer in of]:
            check.kill()

    def kill(self, trainer: str) -> None:
        """Kill the worker with all that it started."""
        for process in self._processes(trainer):
            process.kill()

    def _kill_late(self, worker: NodeWorker, process: TrainingProcess) -> None:
        if process in worker.processes:
            process.kill()

    def sockets_of(self, trainer: str) -> list[Path]:
        """Where the worker's processes listen for their rank processes, by rank; empty if there is no worker."""
        return [self.workdir.socket(process.number) for process in self._processes(trainer)]

    def pids(self) -> Iterator[tuple[str, int]]:
        """(trainer, pid) of the training processes that have been forked."""
        return (
            (trainer, process.pid) for trainer in self._workers for process in self._processes(trainer) if process.pid
        )

    def logs(self) -> list[tuple[Path, str]]:
        """The logs of the training processes, each with its trainer's uid."""
        return [(process.log, process.uid) for process in self._all()]

    def silent(self) -> dict[str, list[int]]:
        """Return the training processes that have not answered the last ``ExamineGroup``, by trainer."""
        return {
            trainer: [process.pid for process in worker.processes if process.rank in worker.local_ranks.silent()]
            for trainer, worker in self._workers.items()
            if all(process.pid for process in worker.processes)
        }

    def end_examination(self, trainer: str) -> None:
        """End the examination of the worker of ``trainer``."""
        if trainer in self._workers:
            self._workers[trainer].local_ranks.end_examination()

    def server_pids(self) -> list[int]:
        """The process ids of the fork servers."""
        return [server.pid for server in self._servers.values()]

    def child_pids(self) -> list[int]:
        """The process ids of the agent's own children that were started here."""
        return [*self.server_pids(), *(check.pid for check in self._checks)]

    def end_server(self, pid: int) -> None:
        """Kill a fork server that does not answer; the next worker gets a new one."""
        for server in [server for server in self._servers.values() if server.pid == pid]:
            log.warning("the fork server of %s was stopped for too long: killed", server.python)
            server.kill()

    def reaped(self, pid: int, status: int) -> None:
        """Handle the end of an orphan: processes whose fork server has ended become the agent's own children."""
        self._ended(lambda process: process.pid == pid, os.waitstatus_to_exitcode(status))

    def close(self) -> None:
        """Kill everything, without reporting it."""
        self._end_checks([check.trainer for check in self._checks])
        for process in self._all():
            process.control.close()
            kill_session(process.pid)
        for server in self._servers.values():
            server.close()

    # --- starting ---------------------------------------------------------------------------------------------------

    def _launch(self, worker: NodeWorker) -> None:
        order = worker.order
        with trainer_folder.held(Path(order.directory, "logs"), order.uid, make=True):
            check_launch(order.launch)
        for rank in range(order.ranks):
            worker.processes.append(self._begin(worker, rank))

    def _begin(self, worker: NodeWorker, rank: int, *, bare: bool = False) -> TrainingProcess:
        """Order one training process, if ``bare`` from a fork server that has preloaded nothing."""
        order = worker.order
        self._count += 1
        path = Path(order.directory, "logs", f"{self.node}.{rank}.log" if order.ranks > 1 else f"{self.node}.log")
        job = ForkJob(self._count, threads(order.ranks), order.launch, self._variables(worker, rank))
        ours, theirs = socket.socketpair()
        server = self.warm_up(order.launch.python, bare=bare)
        with (
            theirs,
            trainer_folder.held(path.parent, order.uid, make=True) as logs,
            open(logs / path.name, "ab", opener=private_folder.private) as file,
        ):
            server.launch(job, [theirs.fileno(), file.fileno(), private_folder.descriptor_of(logs)])
            begin = file.tell()
        received, broken = partial(self._received, order.trainer, rank), partial(self._nonsense, order.trainer)
        return TrainingProcess(self._count, rank, server, WorkerSocket(ours, received, broken), path, order.uid, begin)

    def _variables(self, worker: NodeWorker, rank: int) -> dict[str, str]:
        """Return pilot's own variables for a training process."""
        order = worker.order
        ours = {
            _SOCKET: str(self.workdir.socket(self._count)),
            "PILOT_TRAINER": order.trainer,
            "PILOT_TRAINER_UID": order.uid,
            "PILOT_TRAINER_DIR": order.directory,
            "PILOT_LOCAL_RANK": str(rank),
            "PILOT_LOCAL_SIZE": str(order.ranks),
            "PILOT_CHECKPOINT_INTERVAL_S": str(order.checkpoint_interval_s),
            "PILOT_CHECKPOINTS_KEPT": str(order.checkpoints_kept),
            "PILOT_SILENT_S": str(self.silent_s),
            "PILOT_PATIENCE_S": str(order.patience_s),
            "PILOT_NODE_FABRIC": order.node_fabric,
            "PILOT_NODE_STORE": str(worker.store),
            "PILOT_BETWEEN_NODES": order.between_nodes,
            "PILOT_INTERFACES": ",".join(self.interfaces),
            "PILOT_REPLICA": str(order.replica),
            "PILOT_REPLICA_PLACE": str(order.place),
            "PILOT_REPLICA_NODES": str(order.replica_nodes),
        }
        if order.between_nodes == "nccl" and not order.launch.ddp:  # whose script sums by itself
            ours |= _NCCL | {_BACKENDS[1]: f"={','.join(self.interfaces)}"}
        if self.imports is not None:
            ours[IMPORTS] = str(imports_file(self.imports, order.launch.python))
        if order.launch.ddp:
            ours |= {"PILOT_DDP_ADDRESS": self.address} | dict.fromkeys(_BACKENDS, self.interfaces[0])
        return ours

    def _received(self, trainer: str, rank: int, message: wire.FromAgent) -> None:
        worker = self._workers.get(trainer)
        if worker is None or (combined := worker.local_ranks.combine(rank, message)) is None:
            return
        self.emit(WorkerMessage(trainer, combined))
        if isinstance(combined, wire.WorkerReady):
            self._preload(worker.order.launch.python)

    def _nonsense(self, trainer: str, why: str) -> None:
        log.warning("%s: killing its worker: %s", trainer, why)
        self.kill(trainer)

    # --- reports of the fork servers --------------------------------------------------------------------------------

    def _from_server(self, key: tuple[str, bool], kind: str, fields: list[object]) -> None:
        python, _ = key
        match kind, fields:
            case "ready", [float(seconds), int(threads)]:
                log.info("%s is warm after %.1f s", python, seconds)
                if threads > 1:
                    log.warning("%s runs %d threads after its imports; forked workers may hang", python, threads)
            case "forked", [int(number), int(pid)]:
                self._forked(number, pid)
            case "exited", [int(number), int(status)]:
                self._ended(lambda process: process.number == number, status)
            case "unforked", [int(number), str(why)]:
                self._never_began(lambda process: process.number == number, None, why)
            case "declined", [int(number), str(why)]:
                log.info("process %d runs without preloaded modules: %s", number, why)
                self._order_again(lambda process: process.number == number, bare=True)
            case "preloaded", [list(packages)]:
                log.info("preloaded: %s", ", ".join(map(str, packages)))
            case "unfit", [str(module), str(why)]:
                self._servers[key].close()
                self._without(key, module, why)
            case "gone", [int(status)] if key in self._servers and self._servers[key].importing:
                self._without(key, self._servers[key].importing, f"its import ended with status {status}")
            case "failed", [str(why)]:
                self._give_up(key, None, f"{python} cannot run pilot.train: {why} (install this package there)")
            case "gone", [int(status)] if status < 0:
                log.warning("the fork server of %s was killed; its workers continue", python)
                self._give_up(key, status, "its fork server was killed")
            case "gone", [int(status)]:
                self._give_up(key, None, f"{python} cannot run pilot.train: it ended with status {status}")

    def _forked(self, number: int, pid: int) -> None:
        for _, process in self._matching(lambda process: process.number == number):
            process.pid = pid
            if process.doomed:
                kill_session(pid)

    def _without(self, key: tuple[str, bool], module: str, why: str) -> None:
        """Replace a fork server that must not fork any more because of ``module``, which the next one will not preload.
        The next one forks its pending processes; those that it forked continue.
        """
        python, _ = key
        log.warning("%s is no longer preloaded: %s", module, why)
        self._unfit.setdefault(python, []).append(module)
        server = self._servers.pop(key)
        self._order_again(lambda process: process.server is server and not process.pid)
        self.warm_up(python)

    def _order_again(self, which: Callable[[TrainingProcess], bool], *, bare: bool = False) -> None:
        """Order training processes again that were not forked, unless they are no longer wanted."""
        for worker, process in self._matching(which):
            process.control.close()
            place = worker.processes.index(process)
            del worker.processes[place]
            try:
                if process.doomed or worker.stopping:
                    raise UserError("it was stopped before it started")
                worker.processes.insert(place, self._begin(worker, process.rank, bare=bare))
            except (OSError, ValueError, UserError) as error:
                self._end(worker, _not_started(worker.order.trainer, error))

    def _give_up(self, key: tuple[str, bool], status: int | None, why: str) -> None:
        """Drop an unusable fork server. Processes that it forked continue; the others were never started."""
        server = self._servers.pop(key, None)
        self._never_began(lambda process: not process.pid and process.server is server, status, why)

    def _never_began(self, which: Callable[[TrainingProcess], bool], status: int | None, why: str) -> None:
        """End training processes that could not be forked."""
        for worker, process in self._matching(which):
            process.control.close()
            worker.processes.remove(process)
            self._end(worker, WorkerEnded(worker.order.trainer, status, why))

    # --- the end ----------------------------------------------------------------------------------------------------

    def count_oom_kills(self) -> int:
        """Return how many processes of this job the kernel has killed for lack of memory by now, and remember it; to be
        called every second or so."""
        groups = Path("/proc/self/cgroup").read_text()
        self._oom_kills.append(oom_kills(groups, Path("/sys/fs/cgroup"), Path("/proc/vmstat")))
        return self._oom_kills[-1]

    def _ended(self, which: Callable[[TrainingProcess], bool], status: int) -> None:
        """Clean up after a training process that has ended."""
        out_of_memory = status != 0 and self.count_oom_kills() > self._oom_kills[0]
        for worker, process in self._matching(which):
            process.control.drain()
            process.control.close()
            kill_session(process.pid)
            path = self.workdir.socket(process.number)
            when_possible(partial(_kill_marked, f"{_SOCKET}={path}"))  # what it started in sessions of their own
            with suppress(OSError):  # it may be gone, or the file system read-only by now
                path.unlink()
            worker.processes.remove(process)
            last = process.last_words(), str(process.log)
            self._end(worker, WorkerEnded(worker.order.trainer, status, *last, out_of_memory=out_of_memory))

    def _end(self, worker: NodeWorker, end: WorkerEnded) -> None:
        """Record the end of one of its processes; the worker has ended when the last one has."""
        worker.end = worker.end or end
        if worker.processes:
            if not worker.stopping:
                self.kill(worker.order.trainer)
            return
        del self._workers[worker.order.trainer]
        self._end_checks([worker.order.trainer])
        with suppress(OSError):
            worker.store.unlink()
        self._preload(worker.order.launch.python)
        self.emit(worker.end)

    def _all(self) -> list[TrainingProcess]:
        return [process for worker in self._workers.values() for process in worker.processes]

    def _matching(self, which: Callable[[TrainingProcess], bool]) -> list[tuple[NodeWorker, TrainingProcess]]:
        return [
            (worker, process) for worker in self._workers.values() for process in worker.processes if which(process)
        ]

    def _processes(self, trainer: str) -> list[TrainingProcess]:
        return self._workers[trainer].processes if trainer in self._workers else []


def threads(ranks: int) -> int:
    """How many threads each of a worker's ``ranks`` processes may use: as set in the job's environment, or else its
    share of the cores that this pilot may use.
    """
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(given) if given.isdecimal() and int(given) > 0 else max(1, usable_cores() // ranks)


def _not_started(trainer: str, error: Exception) -> WorkerEnded:
    why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    return WorkerEnded(trainer, None, why, unread=isinstance(error, OSError))


def _kill_marked(entry: str) -> None:
    proc.kill(proc.marked(entry))
