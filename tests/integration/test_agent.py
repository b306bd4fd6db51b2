"""A real agent process, driven by a coordinator that does as the test says."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import zmq

from pilot.io import connection, proc
from pilot.io.wire import Leave, Leaving, StopProcess, WorkerDown
from tests.integration.agent_lab import Agents, Coordinator, lab, launch, until

WAITS = """
import json, os, sys, threading, time
import torch
(torch.rand(64, 64) @ torch.rand(64, 64)).sum()
facts = dict(argv=sys.argv, cwd=os.getcwd(), main=sys.modules["__main__"].__file__, user=os.environ["FROM_USER"],
             trainer=os.environ["PILOT_TRAINER"], threads=torch.get_num_threads(), path=sys.path[0])
print(json.dumps(facts))
open("running", "w").write(str(os.getpid()))
time.sleep(600)
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[tuple[Coordinator, Agents]]:
    yield from lab(tmp_path)


def running(folder: Path) -> int:
    """The pid of the script, once it says that it runs."""
    until(lambda: (folder / "running").exists() and (folder / "running").read_text() != "", "a running script")
    return int((folder / "running").read_text())


def test_a_worker_runs_as_under_plain_python_and_its_death_is_told(
    stage: tuple[Coordinator, Agents], tmp_path: Path
) -> None:
    coordinator, agents = stage
    agent = agents.start(coordinator.file)
    peer = coordinator.peer(agent)
    coordinator.send(peer, launch(tmp_path, WAITS))
    worker = running(tmp_path)
    log = next((tmp_path / "trainers/t1/logs").iterdir())
    text = log.read_text()
    assert '"argv": ["t1.py", "--lr", "0.1"]' in text
    assert f'"cwd": "{tmp_path}", "main": "{tmp_path}/t1.py", "user": "yes", "trainer": "t1", "threads": 1' in text
    os.kill(worker, signal.SIGKILL)
    down = coordinator.expect(peer, WorkerDown)
    assert (down.trainer, down.cause, down.log) == ("t1", "died", str(log))
    assert "SIGKILL" in down.detail
