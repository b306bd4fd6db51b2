"""The guardian: outlives its agent, however that ends, and cleans up after it.

It is started first and leaves the agent's process tree (double fork, own session), so it survives a SIGKILL to the
agent, its process group or its tree. Its standard input is a pipe that only the agent can write to. End of file means
that the agent has died, or that it is leaving and waits for the guardian to finish.  While its agent is stopped (PBS
suspends a job by stopping its session, which contains only the agent), the guardian stops all of the agent's processes,
so that the job that has the node now gets the CPUs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from pilot.agent import workdir as workdirs
from pilot.agent.patience import patiently
from pilot.core.errors import PilotError
from pilot.host import proc
from pilot.host.system import readable

NOTICES = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGURG)
"""Signals that a batch system may send to all processes of a job as a notice; only the agent acts on them."""

CHECK_S = 0.5
"""The guardian checks so often whether its agent is stopped."""


@dataclass(frozen=True, slots=True)
class Guardian:
    """The agent's side: the pipe whose closing starts the clean-up, and the one that closes when it is done."""

    lifeline: IO[bytes]
    done: IO[bytes]

    def clean(self, limit_s: float = 10.0) -> bool:
        """Let the guardian kill and remove everything that is left, and wait; returns whether it finished in time."""
        self.lifeline.close()
        return bool(readable([self.done], limit_s))


def start(workdir: workdirs.Workdir) -> Guardian:
    """Start the guardian of ``workdir``; it is watching when this returns. Call it before becoming a subreaper."""
    process = patiently(
        lambda: subprocess.Popen(
            [sys.executable, "-P", "-m", "pilot.agent.guardian", str(workdir.path), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[workdir.lock],
        )
    )
    assert process.stdin is not None and process.stdout is not None
    if process.stdout.readline() != b"watching\n" or process.wait() != 0:
        raise PilotError("the guardian process did not start; see its message above")
    return Guardian(process.stdin, process.stdout)


def main(path: Path, agent: int) -> None:
    """Detach, wait for the agent's end, and erase its workdir."""
    if patiently(os.fork) != 0:
        os._exit(0)
    os.setsid()
    os.chdir("/")
    for notice in NOTICES:
        signal.signal(notice, signal.SIG_IGN)
    os.write(sys.stdout.fileno(), b"watching\n")
    stopped = False
    while not _has_ended():
        with contextlib.suppress(OSError):  # no descriptor to inspect it
            if proc.is_stopped(agent) != stopped:
                _signal_all(path, agent, signal.SIGCONT if stopped else signal.SIGSTOP)
                stopped = not stopped
    left = workdirs.erase(path)
    if left:
        print(f"pilot guardian: could not kill {left}; they hang in the kernel", file=sys.stderr)


def _has_ended() -> bool:
    """Whether the pipe has ended; waits at most ``CHECK_S`` for that."""
    return bool(readable([sys.stdin], CHECK_S)) and not os.read(sys.stdin.fileno(), 1)


def _signal_all(path: Path, agent: int, number: signal.Signals) -> None:
    for process in proc.marked(f"{workdirs.MARK}={path.name}"):
        if process.pid != agent:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
