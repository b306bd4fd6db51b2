"""The peer of a planned rescale: ``torchrun`` elastic with two agents on loopback, the second of which joins later.

At a change of members it restarts all training processes, which then load a snapshot; the stall is the longest gap
between two steps of the job around the change, minus the median step time after it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

import psutil

SCRIPT = Path(__file__).with_name("torchrun_script.py")
DEADLINE_S = 180.0
STEPS_BEFORE, STEPS_AFTER = 8, 5


def stall_s(subject: str) -> float:
    """Seconds without a step when a second agent joins a first one."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        with _agent(folder, subject, port):
            _until(lambda: len(_steps(folder, 1)) >= STEPS_BEFORE, "steps of one agent")
            with _agent(folder, subject, port):
                _until(lambda: len(_steps(folder, 2)) >= STEPS_AFTER, "steps of two agents")
                before, after = _steps(folder, 1), _steps(folder, 2)
    return after[0] - before[-1] - median(b - a for a, b in pairwise(after))


def loss_s(subject: str) -> float:
    """Seconds without a step when one of two agents is killed (not the first, which hosts the rendezvous store)."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        with _agent(folder, subject, port):
            _until(lambda: bool(_steps(folder, 1)), "step of one agent")
            with _agent(folder, subject, port):
                _until(lambda: len(_steps(folder, 2)) >= STEPS_BEFORE, "steps of two agents")
            killed_s = time.monotonic()
            _until(lambda: len(_since(folder, killed_s)) >= STEPS_AFTER, "steps of one agent")
            before, after = _steps(folder, 2), _since(folder, killed_s)
    return after[0] - before[-1] - median(b - a for a, b in pairwise(after))


def _since(folder: Path, begin_s: float) -> list[float]:
    return [time_s for time_s in _steps(folder, 1) if time_s > begin_s]


def _steps(folder: Path, size: int) -> list[float]:
    """When each step of the group of this size ended, as recorded by its rank 0."""
    path = folder / f"steps.{size}"
    return [float(line) for line in path.read_text().splitlines()] if path.exists() else []


@contextmanager
def _agent(folder: Path, subject: str, port: int) -> Iterator[None]:
    rendezvous = [
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}",
        "--rdzv-id=peer",
        "--local-addr=127.0.0.1",
    ]
    # The defaults wait 30 s for latecomers; without the variable, a second agent's join hangs.
    options = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=9", "--rdzv-conf=last_call_timeout=1"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, *rendezvous, str(SCRIPT), subject, str(folder)]
    environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with (folder / "torchrun.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for member in family:
            if member.is_running():
                member.send_signal(signal.SIGKILL)
        process.wait()


def _until(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"torchrun: no {what} within {DEADLINE_S:g} s")
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
