"""Plays the agents of a few pilots for tests of the data plane: real workers, real MPI, real SIGKILL.

A :class:`Plane` is one trainer. Each :class:`Node` is one pilot's part of it: a worker with its control socket, and a
rank process per generation. Nodes that are started one after the other make the replicas, if these have several.
Everything is driven from the test's thread; each wait is for an event, with a deadline.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import psutil

from pilot.comm.rank_order import WARM, RankOrder, encode
from pilot.core.commands import DissolveGroup, PauseGroup, StopWorker
from pilot.protocol import wire
from pilot.protocol.framing import Frames, framed
from pilot.train.ddp import WITH_OPTIMIZERS
from pilot.train.ranks.script_end import script_ended
from tests.integration.rank_processes import serve, start_rails

DEADLINE_S = 60.0
_Message = TypeVar("_Message")
_cold = multiprocessing.get_context("spawn")
_warm = multiprocessing.get_context("forkserver")
_warm.set_forkserver_preload(["torch", "torch.utils.data", WITH_OPTIMIZERS, "pilot.train"])


@dataclass
class Node:
    """One pilot's part of the trainer. ``status``: with which its process should end."""

    name: str
    process: BaseProcess
    control: socket.socket
    socket_path: Path
    log: Path
    said: list[wire.FromAgent] = field(default_factory=list)
    ranks: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    other_rails: dict[int, list[subprocess.Popen[bytes]]] = field(default_factory=dict)
    warm: list[list[tuple[subprocess.Popen[bytes], socket.socket]]] = field(default_factory=list)
    frames: Frames = field(default_factory=lambda: Frames(wire.MAX_FRAME_BYTES))
    alive: bool = True
    status: int = 0

    def tell(self, message: wire.Message) -> None:
        with contextlib.suppress(OSError):
            self.control.sendall(framed(wire.encode(message)))

    def signal(self, number: int) -> None:
        """Send a signal to the worker."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def rank_process(self, generation: int) -> psutil.Process:
        """The rank process that this node runs in ``generation``."""
        return psutil.Process(self.ranks[generation].pid)

    def heard(self, kind: type[_Message]) -> list[_Message]:
        return [message for message in self.said if isinstance(message, kind)]


class Plane:
    """One trainer on some nodes.

    Parameters
    ----------
    folder : for sockets, logs and checkpoints
    script, arguments : what the workers run
    ranks_per_node : this many consecutive workers share a node and its rank process
    node_fabric : how the workers of a node sum gradients
    rails : rank processes per node in a group of several nodes
    warm_ranks : rank processes that a node starts with its worker; others are started on demand
    between_nodes : how gradients are summed over the nodes; empty: through the rank processes
    nodes_per_replica : over which the model is divided; start, form and lose complete replicas
    """

    interface = "lo"
    """The network interface of all nodes."""

    def __init__(
        self,
        folder: Path,
        script: Path,
        *arguments: str,
        interval_s: float = 1e9,
        silent_s: float = 60.0,
        ranks_per_node: int = 1,
        warm_ranks: int = 0,
        node_fabric: str = "",
        rails: int = 1,
        between_nodes: str = "",
        nodes_per_replica: int = 1,
    ) -> None:
        self.folder = folder
        self.command = [str(script), *arguments]
        self.interval_s = interval_s
        self.silent_s = silent_s
        self.ranks_per_node = ranks_per_node
        self.warm_ranks = warm_ranks
        self.node_fabric = node_fabric
        self.rails = rails
        self.between_nodes = between_nodes
        self.nodes_per_replica = nodes_per_replica
        self.nodes: list[Node] = []
        self.generation = 0
        self.training: list[Node] = []
        (folder / "checkpoints").mkdir(exist_ok=True)

    # --- what a pilot does -------------------------------------------------------------------------------------------

    def start(self, count: int = 1, *, cold: bool = False) -> list[Node]:
        """Start ``count`` nodes with a worker each, and wait until all are warm.

        They are forked from a process that has imported torch, or started ``cold`` like any Python program.
        """
        nodes = [self._start_one(len(self.nodes) + i, cold) for i in range(count)]
        self.nodes += nodes
        for node in nodes:
            self.wait(lambda node=node: bool(node.heard(wire.WorkerReady)), f"{node.name} is warm")
            for process, _ in (rail for rails in node.warm for rail in rails):
                self.wait(lambda pid=process.pid: psutil.Process(pid).name() == WARM, "a warm rank process")
        return nodes

    def _start_one(self, number: int, cold: bool) -> Node:
        name = f"n{number}"
        ours, theirs = socket.socketpair()
        path = self.folder / f"{name}.sock"
        log = self.folder / f"{name}.log"
        environment = {
            "PILOT_WORKER_SOCKET": str(path),
            "PILOT_TRAINER": "t1",
            "PILOT_TRAINER_UID": "",
            "PILOT_TRAINER_DIR": str(self.folder),
            "PILOT_CHECKPOINT_INTERVAL_S": str(self.interval_s),
            "PILOT_CHECKPOINTS_KEPT": "3",
            "PILOT_SILENT_S": str(self.silent_s),
            "PILOT_PATIENCE_S": "inf",
            "PILOT_LOCAL_RANK": str(number % self.ranks_per_node),
            "PILOT_LOCAL_SIZE": str(self.ranks_per_node),
            "PILOT_NODE_FABRIC": self.node_fabric,
            "PILOT_NODE_STORE": str(self.folder / f"store-{number // self.ranks_per_node}"),
            "PILOT_INTERFACES": self.interface,
            "PILOT_REPLICA": str(number // (self.ranks_per_node * self.nodes_per_replica)),
            "PILOT_REPLICA_PLACE": str(number // self.ranks_per_node % self.nodes_per_replica),
            "PILOT_REPLICA_NODES": str(self.nodes_per_replica),
        }
        if self.between_nodes:
            environment["PILOT_BETWEEN_NODES"] = self.between_nodes
        make = _cold.Process if cold else _warm.Process
        process = make(target=_work, args=(self.command, environment, theirs, log), daemon=False)
        process.start()
        theirs.close()
        node = Node(name, process, ours, path, log)
        node.warm = [self._start_rank(node) for _ in range(self.warm_ranks)]
        return node

    def form(self, members: list[Node], *, switch: bool = False, wait: bool = True) -> int:
        """Form the next generation over ``members``; with a ``switch`` the current group trains on until then."""
        self.generation += 1
        generation = self.generation
        together = [members[i : i + self.ranks_per_node] for i in range(0, len(members), self.ranks_per_node)]
        for number, workers in enumerate(together):
            for worker in workers:
                worker.tell(wire.JoinGroup("t1", generation, number, len(together)))
        orders = [self._order_rank(workers, generation, rank, len(together)) for rank, workers in enumerate(together)]
        serve([end for ends in orders for end in ends], self._rails_among(len(together)))
        for node in self.training:
            if switch and node not in members:
                node.tell(wire.LeaveGroup("t1", generation))
        self.training = list(members)
        if wait:
            self.wait_up(generation)
        return generation

    def _rails_among(self, nodes: int) -> int:
        return self.rails if nodes > 1 else 1

    def _order_rank(self, workers: list[Node], generation: int, rank: int, size: int) -> list[socket.socket]:
        """Make a node's rank processes join as ``rank``; returns the sockets to serve them on."""
        first, *others = workers[0].warm.pop() if workers[0].warm else self._start_rank(workers[0])
        for worker in workers:
            worker.ranks[generation] = first[0]
        workers[0].other_rails[generation] = [process for process, _ in others]
        rails, paths = self._rails_among(size), [str(worker.socket_path) for worker in workers]
        ends = [end for _, end in (first, *others)]
        for rail, end in enumerate(ends[:rails]):
            end.sendall(encode(RankOrder(generation, rank, size, paths, rail, rails)))
        for end in ends[rails:]:
            end.close()
        return ends[:rails]

    def _start_rank(self, node: Node) -> list[tuple[subprocess.Popen[bytes], socket.socket]]:
        with node.log.open("ab") as output:
            return start_rails(self.rails, output, self.interface)

    def dissolve(self, generation: int | None = None) -> None:
        """Kill a generation's processes on all nodes, and tell the workers."""
        generation = generation or self.generation
        for node in self.nodes:
            if node.alive and generation in node.ranks:
                node.tell(DissolveGroup("t1", generation, (), "broken"))
        for node in self.nodes:
            for rank in (node.ranks.get(generation), *node.other_rails.get(generation, ())):
                _kill_tree(rank)

    def kill(self, node: Node) -> None:
        """SIGKILL everything on a node."""
        node.alive = False
        if node.process.pid is not None:
            _kill_family(node.process.pid)
        node.process.join(DEADLINE_S)
        warm = [process for rails in node.warm for process, _ in rails]
        others = [process for rails in node.other_rails.values() for process in rails]
        for rank in (*node.ranks.values(), *others, *warm):
            _kill_tree(rank)
        node.control.close()

    def lose(self, node: Node) -> None:
        """SIGKILL everything on a node, and dissolve its group."""
        self.kill(node)
        self.dissolve()

    def pause(self) -> int:
        """Pause the group; returns the step after which all ranks stopped."""
        for node in self.training:
            node.tell(PauseGroup("t1", self.generation, (), ""))
        steps = {self.wait_for(node, wire.RankPaused, self.generation).step for node in self.training}
        assert len(steps) == 1, f"the ranks paused after different steps: {steps}"
        return steps.pop()

    # --- waiting -----------------------------------------------------------------------------------------------------

    def wait(self, done: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
        """Read the workers' messages until ``done``."""
        end_s = time.monotonic() + deadline_s
        while not done():
            left_s = end_s - time.monotonic()
            assert left_s > 0, f"not in {deadline_s} s: {what}\n{self.logs()}"
            self._read(min(left_s, 0.5))

    def wait_for(self, node: Node, kind: type[_Message], generation: int, deadline_s: float = DEADLINE_S) -> _Message:
        """The message of ``kind`` that ``node`` sends in ``generation``."""

        def found() -> list[Any]:
            return [message for message in node.heard(kind) if getattr(message, "generation", None) == generation]

        self.wait(lambda: bool(found()), f"{kind.__name__} of generation {generation} from {node.name}", deadline_s)
        message: _Message = found()[0]
        return message

    def wait_up(self, generation: int) -> wire.GroupFormed:
        """Wait for the leader's report that ``generation`` trains."""
        return self.wait_for(self.training[0], wire.GroupFormed, generation)

    def wait_step(self, step: int) -> None:
        """Wait until a leader has reported ``step`` or a later one."""
        self.wait(lambda: any(r.step >= step for r in self.reports()), f"step {step}")

    def wait_finished(self, deadline_s: float = DEADLINE_S) -> wire.TrainerFinished:
        """Wait for the leader's report that the loop is over."""
        return self.wait_for(self.training[0], wire.TrainerFinished, self.generation, deadline_s)

    def wait_raised(self, nodes: list[Node]) -> None:
        """Wait until the workers of ``nodes`` end by exceptions."""
        for node in nodes:
            node.status = 1
        self.wait(lambda: not any(node.alive for node in nodes), f"{[node.name for node in nodes]} end")

    def reports(self) -> list[wire.Progress]:
        return [message for node in self.nodes for message in node.heard(wire.Progress)]

    def _read(self, timeout_s: float) -> None:
        living = {node.control: node for node in self.nodes if node.alive}
        with selectors.DefaultSelector() as selector:  # select.select refuses descriptors beyond 1023
            for control, node in living.items():
                selector.register(control, selectors.EVENT_READ, node)
            ready = [key.data for key, _ in selector.select(timeout_s)]
        for node in ready:
            try:
                piece = node.control.recv(1 << 16)
            except OSError:
                piece = b""
            if not piece:
                node.alive = False
                self._assert_ended_well(node)
            for message in _messages(node.frames.feed(piece)):
                node.said.append(message)
                if isinstance(message, wire.ReplicaAddresses):
                    self._pass_on(message)

    def _pass_on(self, message: wire.ReplicaAddresses) -> None:
        """Tell all workers of a replica, as its agents and the coordinator do."""
        size = self.ranks_per_node * self.nodes_per_replica
        for node in self.nodes[message.replica * size : (message.replica + 1) * size]:
            node.tell(message)

    def logs(self) -> str:
        return "\n".join(f"--- {node.log.name}\n{node.log.read_text()[-2000:]}" for node in self.nodes)

    # --- the end -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let all workers finish, and wait for them."""
        for node in self.nodes:
            if node.alive:
                node.tell(StopWorker("t1", "", "over"))
        for node in self.nodes:
            if node.alive:
                self._assert_ended_well(node)

    def _assert_ended_well(self, node: Node) -> None:
        node.process.join(DEADLINE_S)
        assert node.process.exitcode == node.status, (
            f"{node.name} ended with status {node.process.exitcode}\n{self.logs()}"
        )

    def clean(self) -> None:
        """Kill whatever is left."""
        for node in self.nodes:
            self.kill(node)


@contextlib.contextmanager
def plane(folder: Path, script: Path, *arguments: str, **options: Any) -> Iterator[Plane]:
    """A plane that is cleaned up afterwards; the arguments are those of :class:`Plane`."""
    made = Plane(folder, script, *arguments, **options)
    try:
        yield made
    finally:
        made.clean()


def _messages(frames: Iterator[bytes]) -> Iterator[wire.FromAgent]:
    for frame in frames:
        yield wire.decode_from_agent(frame)


def _kill_tree(process: subprocess.Popen[bytes] | None) -> None:
    if process is None:
        return
    _kill_family(process.pid)
    process.wait()


def _kill_family(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        for member in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGKILL)


def run_alone(folder: Path, script: Path, *arguments: str) -> None:
    """Run a script to its end as plain ``python`` would, without a plane."""
    log = folder / "alone.log"
    process = _warm.Process(target=_work, args=([str(script), *arguments], {}, None, log))
    process.start()
    process.join(DEADLINE_S)
    assert process.exitcode == 0, log.read_text()


def _work(command: list[str], environment: dict[str, str], control: socket.socket | None, log: Path) -> None:
    """In a process forked warm: become the worker."""
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ |= environment
    if control is not None:
        os.environ["PILOT_CONTROL_FD"] = str(control.detach())
    multiprocessing.set_start_method("fork", force=True)  # as a script under plain python has it
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")
    script_ended()
