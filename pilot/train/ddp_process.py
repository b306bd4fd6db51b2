"""The processes of one generation of a script for ``torchrun``: the script itself, and the store of its ranks.

Both are forked from a process that has imported torch and runs one thread. The script gets the environment variables of
``torchrun`` (torch's documentation, *torchrun (Elastic Launch)*, "Environment Variables") and three more:

``PILOT_CHECKPOINT``    the file to save to and to resume from, the same on all nodes and in all generations (its path
                        may differ)
``PILOT_NOTICE``        a file that exists once the process is about to be ended
``PILOT_NOTICE_S``      the seconds that it then has, if it handles (or ignores) SIGUSR1, which comes with the file
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pilot.host.system import die_with_parent
from pilot.rundir.log_marks import now_rank
from pilot.train.node.membership import Membership, Seat
from pilot.train.script import imported

NOTICE_S = 10.0
"""The time that a script has to save before a change."""

_COUNTS = struct.Struct("Qdd")


class Tally:
    """Counts the steps of the script's optimizers, and times the first and the last; shared by two processes."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _COUNTS.size)

    def begin(self) -> None:
        """Start to count, in the script's process."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self._stepped)

    def read(self) -> tuple[int, float, float]:
        """Return (steps, time of the first, time of the last), on the monotonic clock."""
        return _COUNTS.unpack_from(self._memory)

    def _stepped(self, *_: object) -> None:
        steps, first_s, _last_s = self.read()
        if not steps:
            imported.record()
        now_s = time.monotonic()
        _COUNTS.pack_into(self._memory, 0, steps + 1, first_s or now_s, now_s)


@dataclass(slots=True)
class ScriptProcess:
    """A process that runs the script. ``status``: its exit code, as of ``os.waitstatus_to_exitcode``."""

    pid: int
    tally: Tally
    notice: Path
    checkpoint: Path
    status: int | None = None
    _before: int = field(init=False)

    def __post_init__(self) -> None:
        self._before = self._saved_ns()

    def poll(self) -> int | None:
        """Return the status of the process; None while it runs."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def wait(self) -> None:
        """Wait until the process has ended by itself."""
        while self.poll() is None:
            time.sleep(0.01)

    def wants_notice(self) -> bool:
        """Return whether the process handles or ignores SIGUSR1; otherwise the signal would end it."""
        with suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                name, _, mask = line.partition(":")
                if name in ("SigCgt", "SigIgn") and int(mask, 16) >> (signal.SIGUSR1 - 1) & 1:
                    return True
        return False

    def give_notice(self) -> None:
        """Announce the end of the process to it, by the file and the signal."""
        self._before = self._saved_ns()
        self.notice.touch()
        os.kill(self.pid, signal.SIGUSR1)

    def has_saved(self) -> bool:
        """Return whether the checkpoint was written, by any rank, since the process's start or the notice."""
        return self._saved_ns() != self._before

    def kill(self) -> None:
        """End the process, with all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.notice.unlink(missing_ok=True)

    def _saved_ns(self) -> int:
        try:
            return self.checkpoint.stat().st_mtime_ns
        except OSError:
            return 0


def start(environment: Mapping[str, str], checkpoint: Path, notice: Path) -> ScriptProcess | None:
    """Fork the process that will run the script, and return it; return None in that process."""
    tally, parent = Tally(), os.getpid()
    ours = {"PILOT_CHECKPOINT": checkpoint, "PILOT_NOTICE": notice, "PILOT_NOTICE_S": f"{NOTICE_S:g}"}
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        with suppress(PermissionError):  # the child did so itself, and has called exec since
            os.setpgid(pid, pid)
        return ScriptProcess(pid, tally, notice, checkpoint)
    os.setpgid(0, 0)
    die_with_parent(parent)
    os.environ.update(environment, **{name: str(value) for name, value in ours.items()})
    os.environ.pop("PILOT_CONTROL_FD", None)
    now_rank(int(environment["RANK"]))
    tally.begin()
    return None


def torchrun_environment(group: Membership, seat: Seat, endpoint: tuple[str, int], run: str) -> dict[str, str]:
    """Return the variables that ``torchrun`` would set for this rank of ``group``, whose store is at ``endpoint``."""
    node, nodes = group.rank // seat.size, group.size // seat.size
    values: dict[str, object] = {
        "RANK": group.rank,
        "WORLD_SIZE": group.size,
        "LOCAL_RANK": seat.rank,
        "LOCAL_WORLD_SIZE": seat.size,
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": nodes,
        "ROLE_NAME": "default",
        "ROLE_RANK": group.rank,
        "ROLE_WORLD_SIZE": group.size,
        "MASTER_ADDR": endpoint[0],
        "MASTER_PORT": endpoint[1],
        "TORCHELASTIC_RESTART_COUNT": group.generation - 1,
        "TORCHELASTIC_MAX_RESTARTS": 2**31 - 1,
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    return {name: str(value) for name, value in values.items()}


class Store:
    """A process with torch's TCPStore, listening only at ``address``, so that no forking process has its thread."""

    def __init__(self, address: str) -> None:
        self._socket = socket.create_server((address, 0), backlog=4096)
        self._pid = 0

    @property
    def port(self) -> int:
        """The port on which it listens."""
        port: int = self._socket.getsockname()[1]
        return port

    def serve(self) -> None:
        """Start to serve; until then, connections wait."""
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            die_with_parent(parent)
            self._serve()
        self._socket.close()

    def close(self) -> None:
        """End the store."""
        self._socket.close()
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _serve(self) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # its stubs leave it out

        address, port = self._socket.getsockname()
        store = TCPStore(
            address, port, None, is_master=True, wait_for_workers=False, master_listen_fd=self._socket.fileno()
        )
        while store is not None:
            signal.pause()
