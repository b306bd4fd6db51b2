"""Restarts a coordinator that was killed or crashed: ``python -m pilot.service.durability.supervisor PID COMMAND…``.

``pilot up`` starts it beside the coordinator with process id ``PID``. When its standard input ends, because the
coordinator is up or ``pilot up`` was killed, it waits for the coordinator to end. If the coordinator
left a report (``ended.json``: it drained, or was stopped), there is nothing to do. Otherwise the supervisor runs
COMMAND, after a pause that grows each time, at most :data:`TIMES` times in a row; the count starts again once a
coordinator has run for :data:`STEADY_S`. The supervisor is small and imports almost nothing, because login nodes limit
processes. It is home-made: systemd's user services need lingering, which login nodes often forbid, and supervisord and
circus are daemons of their own that somebody would have to supervise.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from pilot.host.system import readable

MODULE = "pilot.service.durability.supervisor"
TIMES = 10
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
STEADY_S = 60.0
"""A coordinator that crashes because of a bug does so at its start; one that is killed from outside (by a limit of the
login node, say) has run for longer, and should be restarted at once."""
REFUSED = 2
"""The exit status of a coordinator that is not needed: another one is running, or the pool was shut down."""


def main(pid: int, command: list[str]) -> None:
    """Run until the coordinator ends cleanly, or cannot be kept running."""
    root = run_dir_of(command)
    assert root is not None  # pilot up always names it
    status = watch(pid)
    times, pause_s = 0, FIRST_PAUSE_S
    while status != REFUSED and crashed(root):
        if times == TIMES:
            note(root, f"it was restarted {TIMES} times in a row, giving up; pilot up starts it again")
            return
        time.sleep(pause_s)
        times, pause_s = times + 1, min(2 * pause_s, LONGEST_PAUSE_S)
        began_s = time.monotonic()
        note(root, "it crashed or was killed; restarting it")
        status = run(command)
        if time.monotonic() - began_s > STEADY_S:
            times, pause_s = 0, FIRST_PAUSE_S


def run_dir_of(command: list[str]) -> Path | None:
    """The run directory that a command line names; None if it names none."""
    value = dict(itertools.pairwise(command)).get("--run-dir")
    return Path(value) if value is not None else None


def watch(pid: int) -> int | None:
    """Wait for the end of a process that is not our child, so its exit status is unknown."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:  # it has ended already
        return None
    readable([descriptor])
    os.close(descriptor)
    return None


def run(command: list[str]) -> int | None:
    """Run a coordinator to its end; returns its exit status, None if it could not be started."""
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode
    except OSError:  # for example, fork was refused, which may pass
        return None


def crashed(root: Path) -> bool:
    """Whether the coordinator that owned ``root`` crashed or was killed. One that has drained removes its connection
    file."""
    if not (root / "connection.json").exists():
        return False
    try:
        how = json.loads((root / "ended.json").read_text())
        return bool(how["failure"]) if isinstance(how, dict) else True
    except (OSError, ValueError, KeyError):
        return True


def note(root: Path, text: str) -> None:
    """A line in the coordinator's log, if that can be written."""
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} WARNING pilot.supervisor: the coordinator: {text}\n"
    try:
        with (root / "coordinator.log").open("a") as log:
            log.write(line)
    except OSError:
        pass


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()
    main(int(sys.argv[1]), sys.argv[2:])
