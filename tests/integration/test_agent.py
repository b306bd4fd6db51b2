"""A real agent process, driven by a coordinator that the test controls."""

from __future__ import annotations

import os
import random
import signal
import time
import venv
import zlib
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
from tests.integration.agent_lab import LIMIT_S, Coordinator, Lab, launch, launched_with, until

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


def running(folder: Path) -> int:
    """The script's pid, once it reports that it runs."""
    until(lambda: (folder / "running").exists() and (folder / "running").read_text() != "", "a running script")
    return int((folder / "running").read_text())


def test_a_worker_runs_as_under_plain_python_and_its_death_is_reported(lab: Lab, tmp_path: Path) -> None:
    _, peer = lab.run(launch(tmp_path, WAITS, "--lr", "0.1"))
    worker = running(tmp_path)
    log = next((tmp_path / "trainers/t1/logs").glob("*.log"))
    text = log.read_text()
    assert '"argv": ["t1.py", "--lr", "0.1"]' in text
    assert f'"cwd": "{tmp_path}", "main": "{tmp_path}/t1.py", "user": "yes", "trainer": "t1", "threads": 1' in text
    seed_all(zlib.crc32(b"t1"))  # as on all nodes of the trainer
    assert f'"draws": {[random.random(), np.random.rand(), torch.rand(()).item()]}' in text
    os.kill(worker, signal.SIGKILL)
    down = lab.expect(peer, wire.WorkerExited)
    assert (down.trainer, down.cause, down.log) == ("t1", "died", str(log))
    assert "SIGKILL" in down.detail


def test_a_script_that_raises_fails_with_its_last_words(lab: Lab, tmp_path: Path) -> None:
    down = lab.ended(launch(tmp_path, "def f():\n    raise ValueError('no such layer')\n\nf()\n"))
    assert down.cause == "raised"
    assert down.detail == "ValueError: no such layer"
    assert down.origin == f"{tmp_path}/t1.py, line 2: builtins.ValueError"
    traceback = Path(down.log).read_text().splitlines()
    assert traceback[0] == "Traceback (most recent call last):"
    assert traceback[1] == f'  File "{tmp_path}/t1.py", line 4, in <module>'


def test_a_script_that_is_exiting_is_not_killed_before_its_traceback(lab: Lab, tmp_path: Path) -> None:
    _, peer = lab.run(launch(tmp_path, LEAVES))
    running(tmp_path)
    lab.send(peer, SetCheckpointInterval("t1", "", 5.0, ""))
    missing = launch(tmp_path, "", trainer="t2")
    (tmp_path / "t2.py").unlink()
    lab.send(peer, missing)
    assert lab.expect(peer, wire.WorkerExited).trainer == "t2"  # so the agent has handled the message before it
    (tmp_path / "go").touch()
    down = lab.expect(peer, wire.WorkerExited)
    assert (down.trainer, down.cause) == ("t1", "raised")
    assert "ValueError: own" in down.detail


def test_orders_whose_worker_cannot_train_are_answered(lab: Lab, tmp_path: Path) -> None:
    _, peer = lab.start()
    venv.create(tmp_path / "bare", symlinks=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "of_mine.py").write_text("NUMBER = 7")
    bare = str(tmp_path / "bare/bin/python")
    scripts = [
        ("import sys\nsys.exit(3)\n", {}, "the script ended with exit status 3"),
        ("print('hello')\n", {}, "the script ended without opening a pilot.train session"),
        (REFUSED, {}, "t1.py, line 4: LBFGS.step needs a closure"),
        ("x = (1,\n", {}, "SyntaxError: '(' was never closed"),
        # Its interpreter started before its PYTHONPATH was known, whose relative entries are below its directory.
        ("import sys, of_mine\nsys.exit(of_mine.NUMBER)\n", {"environment": {"PYTHONPATH": "mine"}}, "exit status 7"),
    ]
    refusals = [
        ({"script_sha256": "0" * 64}, "was edited since it was submitted"),
        ({"script": "gone.py"}, "cannot read script"),
        ({"cwd": "/no/such/place"}, "no directory /no/such/place"),
        ({"python": "/no/python"}, "no interpreter /no/python"),
        ({"python": "/bin/false"}, "cannot run pilot.train"),
        ({"python": bare}, f"{bare} cannot run pilot.train: ModuleNotFoundError: No module named 'numpy'"),
    ]
    for script, changes, detail in [*scripts, *((WAITS, *refusal) for refusal in refusals)]:
        lab.send(peer, launched_with(launch(tmp_path, script), **changes))
        down = lab.expect(peer, wire.WorkerExited)
        assert down.cause == "raised"
        assert detail in down.detail
        assert script != WAITS or "\n" not in down.detail
    lab.send(peer, StopWorker("t1", "", "to see"))
    assert lab.expect(peer, wire.WorkerExited).cause == "stopped"
    lab.send(peer, WriteCheckpoint("t1", "", "to see"))
    assert "no worker of t1" in lab.expect(peer, wire.CheckpointWritten).error
    lab.send(peer, wire.JoinGroup("t1", 1, 0, 1))
    assert "no worker of t1" in lab.expect(peer, wire.GroupBroken).reason


def test_stop_ends_the_worker_with_all_that_it_started(lab: Lab, tmp_path: Path) -> None:
    _, peer = lab.start()
    child = "import os, subprocess, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n"
    script = child + "subprocess.Popen(['sleep', '600'])\n" + WAITS
    lab.send(peer, launch(tmp_path, script))
    worker = running(tmp_path)
    until(lambda: len(proc.tree(worker)) == 3, "the script's children")
    started = proc.tree(worker)
    lab.send(peer, StopWorker("t1", "", "the plan takes it back"))
    down = lab.expect(peer, wire.WorkerExited)
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


def test_dataloader_workers_work_under_fork_and_spawn(lab: Lab, tmp_path: Path) -> None:
    down = lab.ended(launch(tmp_path, DATALOADER))
    text = Path(down.log).read_text()
    assert "fork [[0, 1, 4, 9], [16, 25, 36, 49]]\nspawn [[0, 1, 4, 9], [16, 25, 36, 49]]\nall read" in text


# --- leaving --------------------------------------------------------------------------------------------------------


def assert_nothing_left(lab: Lab, mark: str, limit_s: float = 15.0) -> None:
    until(lambda: proc.marked(mark) == [] and lab.agents.workdirs() == [], "a clean node", limit_s)


@pytest.mark.parametrize("notice", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_notice_is_reported_and_the_agent_leaves_when_released(
    lab: Lab, tmp_path: Path, notice: signal.Signals
) -> None:
    agent, peer = lab.run(launch(tmp_path, WAITS))
    worker = running(tmp_path)
    agent.send_signal(notice)
    leaving = lab.expect(peer, wire.Noticed)
    assert (leaving.cause, leaving.grace_s) == (f"signal {notice.name}", pytest.approx(10.0))
    assert psutil.pid_exists(worker), "it trains on until it is told"
    lab.send(peer, ReleaseNode("", "released"))
    assert agent.wait(LIMIT_S) == 0
    assert_nothing_left(lab, peer.mark, 0.0)
    assert "left: released" in lab.agents.said(agent)


def test_without_a_word_it_leaves_within_the_grace(lab: Lab, tmp_path: Path) -> None:
    agent, peer = lab.run(launch(tmp_path, WAITS), "--grace-s", "1.5")
    running(tmp_path)
    agent.send_signal(signal.SIGTERM)
    assert lab.expect(peer, wire.Noticed).grace_s == 1.5
    assert agent.wait(LIMIT_S) == 0
    assert_nothing_left(lab, peer.mark, 0.0)


def test_it_leaves_before_its_wall_time_ends(lab: Lab) -> None:
    end_s = time.time() + 12.0
    agent, peer = lab.start("--grace-s", "1", SLURM_JOB_END_TIME=str(end_s), SLURM_JOB_ID="77")
    assert peer.hello.job == "77"
    assert peer.hello.walltime_s is not None
    assert 0 < peer.hello.walltime_s < 12
    leaving = lab.expect(peer, wire.Noticed)
    assert leaving.cause == "wall time"
    assert 0 < leaving.grace_s <= 1 + WALLTIME_MARGIN_S  # until the trainer's end, not just for the grace period
    assert agent.wait(LIMIT_S) == 0
    assert time.time() < end_s


def test_its_wall_time_does_not_depend_on_its_nodes_clock(lab: Lab) -> None:
    day_s = 86400.0
    for ahead_s in (-day_s, day_s):
        end = str(time.time() + ahead_s + 600)  # as its job's script computes it, on the same node
        _, peer = lab.start(ahead_s=ahead_s, PILOT_WALLTIME_END=end)
        assert peer.hello.walltime_s is not None
        assert 0 < peer.hello.walltime_s <= 600


# --- being killed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("everything", [False, True])
def test_a_killed_agent_is_cleaned_up_by_its_guardian(lab: Lab, tmp_path: Path, everything: bool) -> None:
    script = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n" + WAITS
    agent, peer = lab.run(launch(tmp_path, script))
    running(tmp_path)
    proc.kill(proc.tree(agent.pid)[: None if everything else 1])
    assert_nothing_left(lab, peer.mark)


def test_what_an_agent_and_its_guardian_left_is_swept_by_the_next_one(lab: Lab, tmp_path: Path) -> None:
    agent, peer = lab.run(launch(tmp_path, WAITS))
    worker = running(tmp_path)
    segment = proc.SHARED_MEMORY / f"agent_test_{agent.pid}"
    segment.write_bytes(b"left")
    (home,) = lab.agents.workdirs()
    (home / "segments").write_text(f"{segment.name}\n")
    guardians = [p for p in psutil.process_iter(["cmdline"]) if str(home) in (p.info["cmdline"] or [])]
    assert len(guardians) == 1
    proc.kill([*guardians, psutil.Process(agent.pid)])
    agent.wait()
    assert psutil.pid_exists(worker)
    second = lab.agents.start(lab.coordinator.file)
    lab.coordinator.peer(second)
    assert worker not in [process.pid for process in proc.marked(peer.mark)]
    assert not segment.exists()
    assert not home.exists()
    assert len(lab.agents.workdirs()) == 1, "its own, which is locked, stays"


# --- the coordinator ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"enrolment": "guessed"}, "refused by the coordinator: the token is wrong"),
        ({"certificate": "0" * 64}, "is not this pool's coordinator"),
    ],
)
def test_a_wrong_key_or_token_ends_with_2(lab: Lab, wrong: dict[str, str], words: str) -> None:
    connection.write(lab.coordinator.file, msgspec.structs.replace(connection.load(lab.coordinator.file), **wrong))
    agent = lab.agents.start(lab.coordinator.file)
    until(lambda: lab.coordinator.pump(0.1) or agent.poll() is not None, "its end")
    assert agent.returncode == 2
    said = lab.agents.said(agent)
    assert words in said.splitlines()[-1]
    assert "Traceback" not in said
    assert lab.agents.workdirs() == []


def test_it_registers_again_with_its_workers_when_the_coordinator_comes_back(lab: Lab, tmp_path: Path) -> None:
    agent, peer = lab.run(launch(tmp_path, WAITS))
    worker = running(tmp_path)
    lab.coordinator.close()
    os.kill(worker, signal.SIGKILL)
    until(lambda: "t1: worker died" in lab.agents.said(agent), "its word of the worker's end")
    again = Coordinator(tmp_path, lab.coordinator.port, lab.coordinator.certificate)
    peer = again.peer(agent)
    assert peer.hello.workers == []
    assert again.expect(peer, wire.WorkerExited).cause == "died", "what was said meanwhile is not lost"
    again.close()


def test_an_orphan_leaves_after_orphan_s(lab: Lab, tmp_path: Path) -> None:
    lab.coordinator.welcome["orphan_s"] = 5.0
    agent, peer = lab.start()
    lab.send(peer, launch(tmp_path, WAITS))
    until(lambda: lab.coordinator.pump(0.1) or (tmp_path / "running").exists(), "a running script")
    lab.coordinator.close()
    assert agent.wait(LIMIT_S) == 0
    assert "left: no coordinator for" in lab.agents.said(agent)
    assert_nothing_left(lab, peer.mark, 0.0)


# --- the fork server ------------------------------------------------------------------------------------------------


def test_workers_outlive_their_fork_server(lab: Lab, tmp_path: Path) -> None:
    agent, peer = lab.run(launch(tmp_path, WAITS))
    worker = running(tmp_path)
    fork_server = psutil.Process(worker).parent()
    assert fork_server is not None
    fork_server.kill()
    until(lambda: "its workers continue" in lab.agents.said(agent), "its word of the fork server's end")
    lab.send(peer, launch(tmp_path, "raise SystemExit(4)\n", trainer="t2"))
    down = lab.expect(peer, wire.WorkerExited)
    assert (down.trainer, down.cause) == ("t2", "raised"), "by another fork server"
    os.kill(worker, signal.SIGSEGV)
    down = lab.expect(peer, wire.WorkerExited)
    assert (down.trainer, down.cause) == ("t1", "died")
    assert "SIGSEGV" in down.detail


def test_another_interpreter_finds_this_package_and_runs(lab: Lab, tmp_path: Path) -> None:
    venv.create(tmp_path / "other", symlinks=True)
    python = tmp_path / "other/bin/python"
    (packages,) = (tmp_path / "other/lib").glob("python*/site-packages")
    (packages / "more.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
    _, peer = lab.start()
    script = WAITS.replace("facts = ", "print('by', sys.executable)\nfacts = ")
    lab.send(peer, launched_with(launch(tmp_path, script), python=str(python)))
    running(tmp_path)
    assert f"by {python}" in next((tmp_path / "trainers/t1/logs").glob("*.log")).read_text()
