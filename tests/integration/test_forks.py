"""The fork server of an interpreter that cannot train."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import venv
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from pilot.agent import fork_server
from pilot.agent import workdir as workdirs
from pilot.agent.fork_client import ForkClient, in_memory
from pilot.submission.submission import ForkJob, LaunchSpec

LIMIT_S = 60.0
JOB = ForkJob(1, 1, LaunchSpec("none.py", "", [], "/", sys.executable, {"PILOT_TRAINER": "t"}))


def test_its_last_words_are_heard_though_it_never_read_a_job(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    heard: list[tuple[str, list[object]]] = []

    async def play(home: workdirs.Workdir) -> None:
        over = asyncio.Event()

        def report(kind: str, fields: list[object]) -> None:
            heard.append((kind, fields))
            if kind == "gone":
                over.set()

        server = ForkClient(home, str(tmp_path / "bare/bin/python"), report)
        server.launch(JOB, [])
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)  # nothing is read before it has ended
        await asyncio.wait_for(over.wait(), LIMIT_S)

    in_a_workdir(play)
    assert heard == [("failed", ["ModuleNotFoundError: No module named 'numpy'"]), ("gone", [1])]


def test_a_job_is_ordered_after_it_ended_with_modules_to_preload_unread(tmp_path: Path) -> None:
    """The kernel reports what was not read by an error of the next send."""
    heard: list[tuple[str, list[object]]] = []

    async def play(home: workdirs.Workdir) -> None:
        over = asyncio.Event()
        server = ForkClient(home, "/bin/false", lambda kind, fields: (heard.append((kind, fields)), over.set()))
        server.preload(tmp_path / "imports", [])
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        server.launch(JOB, [])
        server.preload(tmp_path / "imports", [])
        await asyncio.wait_for(over.wait(), LIMIT_S)

    in_a_workdir(play)
    assert heard == [("gone", [1])]


def in_a_workdir(play: Callable[[workdirs.Workdir], Coroutine[Any, Any, None]]) -> None:
    """Run ``play``; nothing may be left in its directory that cannot be erased."""
    home = workdirs.create(Path("/tmp"))
    try:
        asyncio.run(play(home))
    finally:
        os.close(home.lock)
        assert workdirs.erase(home.path) == []


REFUSES = """
import errno, os, sys
from pilot.agent import fork_server, patience

patience.LIMIT_S = -1.0
fork = os.fork

def refused():
    os.fork = fork
    raise BlockingIOError(errno.EAGAIN, "no more tasks")

os.fork = refused
fork_server.main(int(sys.argv[1]))
"""


def test_a_fork_that_is_refused_ends_no_fork_server() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        number = theirs.fileno()
        process = subprocess.Popen([sys.executable, "-P", "-c", REFUSES, str(number)], pass_fds=[number])
        theirs.close()
        ours.settimeout(LIMIT_S)
        heard = [json.loads(ours.recv(fork_server.MAX_PACKET_BYTES))[0]]
        with Path(os.devnull).open("rb+") as nothing:
            for number in (1, 2):
                job = msgspec.structs.replace(JOB, number=number)
                with in_memory(job) as file:
                    socket.send_fds(ours, [fork_server.JOB], [file.fileno(), *[nothing.fileno()] * 3])
                heard.append(json.loads(ours.recv(fork_server.MAX_PACKET_BYTES))[:2])
        process.kill()
        process.wait(LIMIT_S)
    assert heard == ["ready", ["unforked", 1], ["forked", 2]]
