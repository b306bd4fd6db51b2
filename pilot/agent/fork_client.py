"""The agent's side of a fork server: start it, give it jobs, receive its reports."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from pilot.agent import fork_server
from pilot.agent.patience import patiently
from pilot.agent.workdir import MARK, Workdir
from pilot.submission.submission import ForkJob

_ENDED = BrokenPipeError, ConnectionResetError
"""Errors of sending to a server that has ended; the second, once, if it has not read everything."""

Report = Callable[[str, list[object]], None]
"""Called with a report's kind and fields, as in :mod:`pilot.agent.fork_server`; the last is ``gone`` with a status."""


class ForkClient:
    """One interpreter with torch imported. Construct it in a running event loop.

    ``importing`` is the module that it is preloading.
    """

    def __init__(self, workdir: Workdir, python: str, report: Report) -> None:
        self.python = python
        self.importing = ""
        self._report = report
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = patiently(
                lambda: subprocess.Popen(
                    [python, "-P", "-m", "pilot.agent.fork_server", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=environment_for(workdir, python),
                    start_new_session=True,
                )
            )
        self._channel.setblocking(False)
        asyncio.get_running_loop().add_reader(self._channel, self._readable)

    @property
    def pid(self) -> int:
        """The process id of the fork server itself."""
        return self._process.pid

    def preload(self, file: Path, unfit: Sequence[str]) -> None:
        """Have the server import the modules listed in ``file`` (:mod:`pilot.submission.installed`), but none of
        ``unfit``.
        """
        with suppress(*_ENDED, BlockingIOError):
            self._channel.send(json.dumps(["preload", str(file), list(unfit)]).encode())

    def launch(self, job: ForkJob, descriptors: Sequence[int]) -> None:
        """Fork a training process for ``job``; the descriptors are its control socket, its log, and the log's folder.
        If the fork server has just ended, ``gone`` is reported.
        """
        with in_memory(job) as file, suppress(*_ENDED):
            socket.send_fds(self._channel, [fork_server.JOB], [file.fileno(), *descriptors])

    def kill(self) -> None:
        """Kill it; ``gone`` follows."""
        self._process.kill()

    def close(self) -> None:
        """Kill it; the workers that it forked continue."""
        self._hang_up()
        self._process.kill()
        self._process.wait()

    def _hang_up(self) -> None:
        asyncio.get_running_loop().remove_reader(self._channel)
        self._channel.close()

    def _readable(self) -> None:
        while self._channel.fileno() >= 0:  # the receiver of the report may close it
            try:
                packet = self._channel.recv(fork_server.MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # it ended without reading everything we sent: reported once, before what it sent itself
            if not packet:
                self._hang_up()
                self._report("gone", [self._process.wait()])
                return
            kind, *fields = json.loads(packet)
            if kind == "importing":
                self.importing = fields[0]
            else:
                self._report(kind, fields)


def in_memory(job: ForkJob) -> IO[bytes]:
    """Return a file with ``job``, which may be larger than a packet."""
    file = os.fdopen(os.memfd_create("job"), "w+b", buffering=0)
    file.write(msgspec.json.encode(job))
    return file


def environment_for(workdir: Workdir, python: str) -> dict[str, str]:
    """Return the environment of a fork server, which imports with one thread. An interpreter other than the agent's
    finds only this package, by a link.
    """
    name, _, value = workdir.mark.partition("=")
    assert name == MARK
    ours = {name: value, "TMPDIR": str(workdir.temporary)}
    given = fork_server.ALLOCATOR | fork_server.HASHES | dict(os.environ)
    environment = given | dict.fromkeys(fork_server.THREAD_VARIABLES, "1") | ours
    if python != sys.executable:
        paths = [str(_package_link(workdir)), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def _package_link(workdir: Workdir) -> Path:
    folder = workdir.path / "packages"
    folder.mkdir(exist_ok=True)
    link = folder / "pilot"
    if not link.is_symlink():
        link.symlink_to(Path(__file__).parents[1])
    return folder
