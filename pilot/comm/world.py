"""The ranks of one MPI world, all on this host and served by one process, without agents or a coordinator."""

from __future__ import annotations

import math
import secrets
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence

from pilot.comm.pmi import PmiServer, variables
from pilot.host.system import readable


class World:
    """``spaces`` are the names of the nodes' key-value spaces.

    Parameters
    ----------
    ends : the sockets to the rank processes, by rank; owned from now on
    rails : ranks that MPICH considers to be on one node
    """

    def __init__(self, ends: Sequence[socket.socket], rails: int = 1) -> None:
        self._ends = ends
        self.spaces = [f"pilot_{secrets.token_hex(8)}" for _ in ends[::rails]]
        self._servers = [PmiServer(len(ends), self.spaces[rank // rails], rails) for rank in range(len(ends))]

    def serve(self, limit_s: float = math.inf) -> bool:
        """Serve until all ranks have finalized and closed their ends; False if one ends before that, or at the limit.
        Raises :class:`~pilot.core.errors.ProtocolError` if one of them sends something that is not PMI.
        """
        living, end_s = dict(zip(self._ends, self._servers, strict=True)), time.monotonic() + limit_s
        while living:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return False
            for end in readable(living, None if left_s == math.inf else left_s):
                if received := _received(end):
                    _send(end, living[end].hear(received))
                elif not living.pop(end).finalized:
                    return False
            if all(server.in_barrier for server in self._servers):
                self._open()
        return True

    def close(self) -> None:
        """Close the sockets, which ends running rank processes."""
        for end in self._ends:
            end.close()

    def _open(self) -> None:
        table = {key: value for server in self._servers for key, value in server.puts.items()}
        for end, server in zip(self._ends, self._servers, strict=True):
            _send(end, server.open(table))


def run(
    command: Sequence[str], size: int, environment: Mapping[str, str], limit_s: float
) -> list[subprocess.CompletedProcess[str]]:
    """Run ``command`` as each rank of a world; returns how each ended, by rank. When one fails, or after ``limit_s``,
    the others are killed."""
    pairs = [socket.socketpair() for _ in range(size)]
    processes = [_start(command, environment, theirs, rank, size) for rank, (_, theirs) in enumerate(pairs)]
    world = World([ours for ours, _ in pairs])
    try:
        over = world.serve(limit_s)
    finally:
        world.close()
    return [_end(process, over) for process in processes]


def _start(
    command: Sequence[str], environment: Mapping[str, str], end: socket.socket, rank: int, size: int
) -> subprocess.Popen[str]:
    with end:
        return subprocess.Popen(
            command,
            env={**environment, **variables(end.fileno(), rank, size)},
            pass_fds=[end.fileno()],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def _end(process: subprocess.Popen[str], over: bool) -> subprocess.CompletedProcess[str]:
    if not over:
        process.kill()
    output, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(1 << 16)
    except ConnectionResetError:
        return b""


def _send(end: socket.socket, answer: bytes) -> None:
    try:
        end.sendall(answer, socket.MSG_NOSIGNAL)
    except OSError:
        return  # the reader sees its end
