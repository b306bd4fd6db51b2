"""Rank processes for tests that play the agents: started warm, and served as one world."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from threading import Thread
from typing import IO

from pilot.comm import mpich
from pilot.comm.world import World

RANK = ["-m", "pilot.comm.rank"]
"""What the interpreter runs as a rank process."""


def start_rank_process(
    output: IO[bytes] | None = None,
    rails: Sequence[socket.socket] = (),
    interface: str = "lo",
    prefix: Sequence[str] = (),
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A rank process that waits for orders on the other end of the socket; ``rails`` are its ends to the others of its
    node. ``prefix`` runs a command in a network that has the ``interface``.
    """
    ours, theirs = socket.socketpair()
    with ExitStack() as given:
        passed = [given.enter_context(end).fileno() for end in (theirs, *rails)]
        command = [*prefix, sys.executable, *RANK, *map(str, passed)]
        environment = mpich.environment(os.environ, interface=interface, provider="tcp")
        process = subprocess.Popen(
            command, env=environment, pass_fds=passed, start_new_session=True, stdout=output, stderr=output
        )
    return process, ours


def start_rails(
    count: int, output: IO[bytes] | None = None, interface: str = "lo", prefix: Sequence[str] = ()
) -> list[tuple[subprocess.Popen[bytes], socket.socket]]:
    """The rank processes of a node, rail 0 first."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count - 1)]
    ends = [[ours for ours, _ in pairs], *([theirs] for _, theirs in pairs)]
    return [start_rank_process(output, its, interface, prefix) for its in ends]


def serve(ends: Sequence[socket.socket], rails: int = 1) -> Thread:
    """Serve the ranks of a world until they have finalized or one of them is gone."""
    thread = Thread(target=World(ends, rails).serve, daemon=True)
    thread.start()
    return thread
