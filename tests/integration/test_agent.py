"""A real agent process, driven by a coordinator that the test controls."""

from __future__ import annotations

import os
import random
import signal
import time
import venv
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import torch

from pilot.agent.departure import WALLTIME_MARGIN_S
from pilot.core.commands import ReleaseNode, SetCheckpointInterval, StopWorker, WriteCheckpoint
from pilot.host import proc
from pilot.protocol import connection, wire
from pilot.train.data.rng import seed_all
from tests.integration.agent_lab import LIMIT_S, Agents, Coordinator, lab, launch, launched_with, until

LEAVES = """
import os, time
from pathlib import Path
os.close(int(os.environ["PILOT_CONTROL_FD"]))
Path("running").write_text(str(os.getpid()))
while not Path("go").exists():
    time.sleep(0.01)
raise ValueError("own")
"""

REFUSED = """import torch
import pilot.train
model = torch.nn.Linear(1, 1)
pilot.train.session(model, torch.optim.LBFGS(model.parameters()))
"""

WAITS = """
import json, os, random, sys, threading, time
import numpy, torch
draws = [random.random(), numpy.random.rand(), torch.rand(()).item()]
(torch.rand(64, 64) @ torch.rand(64, 64)).sum()
facts = dict(argv=sys.argv, cwd=os.getcwd(), main=sys.modules["__main__"].__file__, user=os.environ["FROM_USER"],
             trainer=os.environ["PILOT_TRAINER"], threads=torch.get_num_threads(), path=sys.path[0],
             draws=draws)
print(json.dumps(facts))
open("running", "w").write(str(os.getpid()))
time.sleep(600)
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[tuple[Coordinator, Agents]]:
    yield from lab(tmp_path)


def running(folder: Path) -> int:
    """The script's pid, once it reports that it runs."""
    until(lambda: (folder / "running").exists() and (folder / "running").read_text() != "", "a running script")
    return int((folder / "running").read_text())


def test_a_worker_runs_as_under_plain_python_and_its_death_is_told(
    stage: tuple[Coordinator, Agents], tmp_path: Path
) -> None:
    coordinator, agents = stage
    agent = agents.start(coordinator.file)
    peer = coordinator.peer(agent)
    coordinator.send(peer, launch(tmp_path, WAITS, "--lr", "0.1"))
    worker = running(tmp_path)
    log = next((tmp_path / "trainers/t1/logs").glob("*.log"))
    text = log.read_text()
    assert '"argv": ["t1.py", "--lr", "0.1"]' in text
    assert f'"cwd": "{tmp_path}", "main": "{tmp_path}/t1.py", "user": "yes", "trainer": "t1", "threads": 1' in text
    seed_all(zlib.crc32(b"t1"))  # as on all nodes of the trainer
    assert f'"draws": {[random.random(), np.random.rand(), torch.rand(()).item()]}' in text
    os.kill(worker, signal.SIGKILL)
    down = coordinator.expect(peer, wire.WorkerExited)
    assert (down.trainer, down.cause, down.log) == ("t1", "died", str(log))
    assert "SIGKILL" in down.detail


def test_a_script_that_raises_fails_with_its_last_words(stage: tuple[Coordinator, Agents], tmp_path: Path) -> None:
    coordinator, agents = stage
    peer = coordinator.peer(agents.start(coordinator.file))
    coordinator.send(peer, launch(tmp_path, "def f():\n    raise ValueError('no such layer')\n\nf()\n"))
    down = coordinator.expect(peer, wire.WorkerExited)
    assert down.cause == "raised"
    lines = down.detail.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{tmp_path}/t1.py", line 4, in <module>'
    assert lines[-1] == "ValueError: no such layer"


def test_a_script_that_is_on_its_way_out_is_not_killed_before_it_has_said_why(
    stage: tuple[Coordinator, Agents], tmp_path: Path
) -> None:
    coordinator, agents = stage
    peer = coordinator.peer(agents.start(coordinator.file))
    coordinator.send(peer, launch(tmp_path, LEAVES))
    running(tmp_path)
    coordinator.send(peer, SetCheckpointInterval("t1", "", 5.0, ""))
    missing = launch(tmp_path, "", trainer="t2")
    (tmp_path / "t2.py").unlink()
    coordinator.send(peer, missing)
    assert coordinator.expect(peer, wire.WorkerExited).trainer == "t2"  # so the agent has handled the message before it
    (tmp_path / "go").touch()
    down = coordinator.expect(peer, wire.WorkerExited)
    assert (down.trainer, down.cause) == ("t1", "raised")
    assert "ValueError: own" in down.detail


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        ("import sys\nsys.exit(3)\n", "the script ended with exit status 3"),
        ("print('hello')\n", "the script ended without opening a pilot.train session"),
        (REFUSED, "t1.py, line 4: LBFGS.step needs a closure"),
        ("x = (1,\n", "SyntaxError: '(' was never closed"),
    ],
)
def test_a_script_that_ends_without_training(
    stage: tuple[Coordinator, Agents], tmp_path: Path, script: str, detail: str
) -> None:
    coordinator, agents = stage
    peer = coordinator.peer(agents.start(coordinator.file))
    coordinator.send(peer, launch(tmp_path, script))
    down = coordinator.expect(peer, wire.WorkerExited)
    assert down.cause == "raised"
    assert detail in down.detail


def test_a_script_imports_from_its_pythonpath(stage: tuple[Coordinator, Agents], tmp_path: Path) -> None:
    """Even though its interpreter started before they were known; relative entries are below its directory."""
    coordinator, agents = stage
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "of_mine.py").write_text("NUMBER = 7")
    peer = coordinator.peer(agents.start(coordinator.file))
    order = launch(tmp_path, "import sys, of_mine\nsys.exit(of_mine.NUMBER)\n")
    coordinator.send(peer, launched_with(order, environment={"PYTHONPATH": "mine"}))
    assert "exit status 7" in coordinator.expect(peer, wire.WorkerExited).detail


def test_orders_that_cannot_be_carried_out_are_answered(stage: tuple[Coordinator, Agents], tmp_path: Path) -> None:
    coordinator, agents = stage
    peer = coordinator.peer(agents.start(coordinator.file))
    order = launch(tmp_path, WAITS)
    cases = [
        (launched_with(order, script_sha256="0" * 64), "was edited since it was submitted"),
        (launched_with(order, script="gone.py"), "cannot read script"),
        (launched_with(order, cwd="/no/such/place"), "no directory /no/such/place"),
        (launched_with(order, python="/no/python"), "no interpreter /no/python"),
        (launched_with(order, python="/bin/false"), "cannot run pilot.train"),
        (launched_with(order, arguments=["x" * 200_000]), "arguments and environment are"),
    ]
    for refused, detail in cases:
        coordinator.send(peer, refused)
        down = coordinator.expect(peer, wire.WorkerExited)
        assert down.cause == "raised"
        assert detail in down.detail
        assert "\n" not in down.detail
    coordinator.send(peer, StopWorker("t1", "", "to see"))
    assert coordinator.expect(peer, wire.WorkerExited).cause == "stopped"
    coordinator.send(peer, WriteCheckpoint("t1", "", "to see"))
    assert "no worker of t1" in coordinator.expect(peer, wire.CheckpointWritten).error
    coordinator.send(peer, wire.JoinGroup("t1", 1, 0, 1))
    assert "no worker of t1" in coordinator.expect(peer, wire.GroupBroken).reason


def test_stop_ends_the_worker_with_all_that_it_started(stage: tuple[Coordinator, Agents], tmp_path: Path) -> None:
    coordinator, agents = stage
    agent = agents.start(coordinator.file)
    peer = coordinator.peer(agent)
    child = "import os, subprocess, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n"
    script = child + "subprocess.Popen(['sleep', '600'])\n" + WAITS
    coordinator.send(peer, launch(tmp_path, script))
    worker = running(tmp_path)
    until(lambda: len(proc.tree(worker)) == 3, "the script's children")
    started = proc.tree(worker)
    coordinator.send(peer, StopWorker("t1", "", "the plan takes it back"))
    down = coordinator.expect(peer, wire.WorkerExited)
    assert (down.cause, down.detail) == ("stopped", "the plan takes it back")
    until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in started), "their end")


DATALOADER = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return i * i

if __name__ == "__main__":
    for how in ("fork", "spawn"):
        loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context=how)
        print(how, [batch.tolist() for batch in loader], flush=True)
    print("all read", flush=True)
"""


def test_dataloader_workers_work_under_fork_and_spawn(stage: tuple[Coordinator, Agents], tmp_path: Path) -> None:
    coordinator, agents = stage
    peer = coordinator.peer(agents.start(coordinator.file))
    coordinator.send(peer, launch(tmp_path, DATALOADER))
    down = coordinator.expect(peer, wire.WorkerExited)
    text = Path(down.log).read_text()
    assert "fork [[0, 1, 4, 9], [16, 25, 36, 49]]\nspawn [[0, 1, 4, 9], [16, 25, 36, 49]]\nall read" in text


# --- leaving --------------------------------------------------------------------------------------------------------


def assert_nothing_left(agents: Agents, mark: str) -> None:
    until(lambda: proc.marked(mark) == [] and agents.workdirs() == [], "a clean node", limit_s=15)


@pytest.mark.parametrize("notice", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_notice_is_told_and_the_agent_leaves_when_it_may(
    stage: tuple[Coordinator, Agents], tmp_path: Path, notice: signal.Signals
) -> None:
    coordinator, agents = stage
    agent = agents.start(coordinator.file)
    peer = coordinator.peer(agent)
    coordinator.send(peer, launch(tmp_path, WAITS))
    worker = running(tmp_path)
    agent.send_signal(notice)
    leaving = coordinator.expect(peer, wire.Noticed)
    assert (leaving.cause, leaving.grace_s) == (f"signal {notice.name}", pytest.approx(10.0))
    assert psutil.pid_exists(worker), "it trains on until it is told"
    coordinator.send(peer, ReleaseNode("", "released"))
    assert agent.wait(LIMIT_S) == 0
    assert proc.marked(peer.mark) == []
    assert agents.workdirs() == []
    assert "left: released" in agents.said(agent)


def test_without_a_word_it_leaves_within_the_grace(stage: tuple[Coordinator, Agents], tmp_path: Path) -> None:
    coordinator, agents = stage
    agent = agents.start(coordinator.file, "--grace-s", "1.5")
    peer = coordinator.peer(agent)
    coordinator.send(peer, launch(tmp_path, WAITS))
    running(tmp_path)
    agent.send_signal(signal.SIGTERM)
    assert coordinator.expect(peer, wire.Noticed).grace_s == 1.5
    assert agent.wait(LIMIT_S) == 0
    assert proc.marked(peer.mark) == []
    assert agents.workdirs() == []


def test_it_leaves_before_its_wall_time_ends(stage: tuple[Coordinator, Agents]) -> None:
    coordinator, agents = stage
    end_s = time.time() + 12.0
    agent = agents.start(coordinator.file, "--grace-s", "1", SLURM_JOB_END_TIME=str(end_s), SLURM_JOB_ID="77")
    peer = coordinator.peer(agent)
    assert peer.hello.job == "77"
    assert peer.hello.walltime_s is not None
    assert 0 < peer.hello.walltime_s < 12
    leaving = coordinator.expect(peer, wire.Noticed)
    assert leaving.cause == "wall time"
    assert 0 < leaving.grace_s <= 1 + WALLTIME_MARGIN_S  # until the trainer's end, not just for the grace period
    assert agent.wait(LIMIT_S) == 0
    assert time.time() < end_s


def test_what_it_says_of_its_wall_time_does_not_depend_on_its_nodes_clock(stage: tuple[Coordinator, Agents]) -> None:
    coordinator, agents = stage
    day_s = 86400.0
    for ahead_s in (-day_s, day_s):
        end = str(time.time() + ahead_s + 600)  # as its job's script computes it, on the same node
        peer = coordinator.peer(agents.start(coordinator.file, ahead_s=ahead_s, PILOT_WALLTIME_END=end))
        assert peer.hello.walltime_s is not None
        assert 0 < peer.hello.walltime_s <= 600


# --- being killed ---------------------------------------------------------------------------------------------------


def test_a_killed_agent_is_cleaned_up_by_its_guardian(stage: tuple[Coordinator, Agents], tmp_path: Path) -> None:
    coordinator, agents = stage
    agent = agents.start(coordinator.file)
    peer = coordinator.peer(agent)
    script = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n" + WAITS
    coordinator.send(peer, launch(tmp_path, script))
    running(tmp_path)
    agent.kill()
    assert_nothing_left(agents, peer.mark)


def test_a_killed_tree_is_cleaned_up(stage: tuple[Coordinator, Agents], tmp_path: Path) -> None:
    coordinator, agents = stage
    agent = agents.start(coordinator.file)
    peer = coordinator.peer(agent)
    coordinator.send(peer, launch(tmp_path, WAITS))
    running(tmp_path)
    proc.kill(proc.tree(agent.pid))
    assert_nothing_left(agents, peer.mark)


def test_what_an_agent_and_its_guardian_left_is_swept_by_the_next_one(
    stage: tuple[Coordinator, Agents], tmp_path: Path
) -> None:
    coordinator, agents = stage
    agent = agents.start(coordinator.file)
    peer = coordinator.peer(agent)
    coordinator.send(peer, launch(tmp_path, WAITS))
    worker = running(tmp_path)
    segment = proc.SHARED_MEMORY / f"agent_test_{agent.pid}"
    segment.write_bytes(b"left")
    (home,) = agents.workdirs()
    (home / "segments").write_text(f"{segment.name}\n")
    guardians = [p for p in psutil.process_iter(["cmdline"]) if str(home) in (p.info["cmdline"] or [])]
    assert len(guardians) == 1
    proc.kill([*guardians, psutil.Process(agent.pid)])
    agent.wait()
    assert psutil.pid_exists(worker)
    second = agents.start(coordinator.file)
    coordinator.peer(second)
    assert worker not in [process.pid for process in proc.marked(peer.mark)]
    assert not segment.exists()
    assert not home.exists()
    assert len(agents.workdirs()) == 1, "its own, which is locked, stays"


# --- the coordinator ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"enrolment": "guessed"}, "refused by the coordinator: the token is wrong"),
        ({"certificate": "0" * 64}, "is not the coordinator of this connection file"),
    ],
)
def test_a_wrong_key_or_token_ends_with_2(stage: tuple[Coordinator, Agents], wrong: dict[str, str], words: str) -> None:
    coordinator, agents = stage
    connection.write(coordinator.file, msgspec.structs.replace(connection.load(coordinator.file), **wrong))
    agent = agents.start(coordinator.file)
    until(lambda: coordinator.pump(0.1) or agent.poll() is not None, "its end")
    assert agent.returncode == 2
    said = agents.said(agent)
    assert words in said.splitlines()[-1]
    assert "Traceback" not in said
    assert agents.workdirs() == []


def test_it_registers_again_with_its_workers_when_the_coordinator_comes_back(
    stage: tuple[Coordinator, Agents], tmp_path: Path
) -> None:
    coordinator, agents = stage
    agent = agents.start(coordinator.file)
    peer = coordinator.peer(agent)
    coordinator.send(peer, launch(tmp_path, WAITS))
    worker = running(tmp_path)
    coordinator.close()
    os.kill(worker, signal.SIGKILL)
    until(lambda: "t1: worker died" in agents.said(agent), "its word of the worker's end")
    again = Coordinator(tmp_path, coordinator.port, coordinator.certificate)
    peer = again.peer(agent)
    assert peer.hello.workers == []
    assert again.expect(peer, wire.WorkerExited).cause == "died", "what was said meanwhile is not lost"
    again.close()


def test_an_orphan_leaves_after_orphan_s(stage: tuple[Coordinator, Agents], tmp_path: Path) -> None:
    coordinator, agents = stage
    coordinator.welcome["orphan_s"] = 5.0
    agent = agents.start(coordinator.file)
    peer = coordinator.peer(agent)
    coordinator.send(peer, launch(tmp_path, WAITS))
    until(lambda: coordinator.pump(0.1) or (tmp_path / "running").exists(), "a running script")
    coordinator.close()
    assert agent.wait(LIMIT_S) == 0
    assert "left: no coordinator for" in agents.said(agent)
    assert proc.marked(peer.mark) == []
    assert agents.workdirs() == []


# --- the fork server ------------------------------------------------------------------------------------------------


def test_workers_outlive_their_fork_server(stage: tuple[Coordinator, Agents], tmp_path: Path) -> None:
    coordinator, agents = stage
    agent = agents.start(coordinator.file)
    peer = coordinator.peer(agent)
    coordinator.send(peer, launch(tmp_path, WAITS))
    worker = running(tmp_path)
    fork_server = psutil.Process(worker).parent()
    assert fork_server is not None
    fork_server.kill()
    until(lambda: "its workers continue" in agents.said(agent), "its word of the fork server's end")
    coordinator.send(peer, launch(tmp_path, "raise SystemExit(4)\n", trainer="t2"))
    down = coordinator.expect(peer, wire.WorkerExited)
    assert (down.trainer, down.cause) == ("t2", "raised"), "by another fork server"
    os.kill(worker, signal.SIGSEGV)
    down = coordinator.expect(peer, wire.WorkerExited)
    assert (down.trainer, down.cause) == ("t1", "died")
    assert "SIGSEGV" in down.detail


def test_another_interpreter_without_what_training_needs_is_said_so(
    stage: tuple[Coordinator, Agents], tmp_path: Path
) -> None:
    coordinator, agents = stage
    venv.create(tmp_path / "bare", symlinks=True)
    python = str(tmp_path / "bare/bin/python")
    peer = coordinator.peer(agents.start(coordinator.file))
    coordinator.send(peer, launched_with(launch(tmp_path, WAITS), python=python))
    down = coordinator.expect(peer, wire.WorkerExited)
    assert down.cause == "raised"
    assert f"{python} cannot run pilot.train: ModuleNotFoundError: No module named 'numpy'" in down.detail


def test_another_interpreter_finds_this_package_and_runs(stage: tuple[Coordinator, Agents], tmp_path: Path) -> None:
    coordinator, agents = stage
    venv.create(tmp_path / "other", symlinks=True)
    python = tmp_path / "other/bin/python"
    (packages,) = (tmp_path / "other/lib").glob("python*/site-packages")
    (packages / "more.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
    peer = coordinator.peer(agents.start(coordinator.file))
    script = WAITS.replace("facts = ", "print('by', sys.executable)\nfacts = ")
    coordinator.send(peer, launched_with(launch(tmp_path, script), python=str(python)))
    running(tmp_path)
    assert f"by {python}" in next((tmp_path / "trainers/t1/logs").glob("*.log")).read_text()
