"""Rank processes of tests that play the agents: started warm, and served as one world."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from threading import Thread
from typing import IO

from pilot.comm import mpich
from pilot.comm.world import World


def start_rank_process(output: IO[bytes] | None = None) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """One that waits for its order on the other end of the socket."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "pilot.comm.rank", str(theirs.fileno())]
        environment = mpich.environment(os.environ, interface="lo", provider="tcp")
        process = subprocess.Popen(
            command, env=environment, pass_fds=[theirs.fileno()], start_new_session=True, stdout=output, stderr=output
        )
    return process, ours


def serve(ends: Sequence[socket.socket]) -> Thread:
    """Serve the ranks of a world until they have finalized, or one of them is gone."""
    thread = Thread(target=World(ends).serve, daemon=True)
    thread.start()
    return thread
