"""Scripts for torchrun run in a pool, through growth, notice and kills, beside a trainer with a session."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil

from tests.ddp.test_generations import noted
from tests.pools import TRAIN, Pool

SCRIPT = Path(__file__).with_name("train.py")


def submit(pool: Pool, epochs: int, *arguments: str) -> str:
    log = str(pool.folder / "steps")
    return pool.submit(SCRIPT, str(epochs), "0.02", log, *arguments, options=("--ddp", "--max-nodes", "2"))


def test_a_script_for_torchrun_grows_and_goes_on_after_a_kill_and_finishes(pool: Pool) -> None:
    pool.up()
    agents = [pool.agent()]
    name = submit(pool, 10_000)
    pool.until_step(name, 20, nodes=1)
    agents.append(pool.agent())
    pool.until_step(name, 0, nodes=2)
    pool.until_step(name, pool.trainer(name).step + 20, nodes=2)
    stores = [c for p in psutil.Process(agents[0].pid).children(recursive=True) for c in p.net_connections("inet")]
    assert {c.laddr.ip for c in stores if c.status == psutil.CONN_LISTEN} <= {"127.0.0.1"}
    pool.kill_tree(agents[1])
    pool.until_step(name, pool.trainer(name).step + 10, nodes=1)
    (pool.folder / "enough").touch()
    assert pool.pilot("wait", name).stdout == f"{name} finished\n"
    assert noted(pool.folder, "done")
    begun = [line.split()[0] for line in noted(pool.folder, "begins")]
    assert begun[:1] == ["0/1"]
    assert {"0/2", "1/2"} <= set(begun)
    assert int(noted(pool.folder, "begins")[-1].split()[-1]) > 0
    assert "[1]" in pool.pilot("logs", name, "--all").stdout
    trainer = pool.trainer(name)
    assert trainer.worker_deaths == 0
    assert 1 in trainer.measured_samples_per_s


def test_notice_lets_it_save_before_its_node_goes_and_a_session_trains_beside_it(pool: Pool) -> None:
    pool.up()
    for _ in range(3):
        pool.agent()
    name = submit(pool, 1000, "notice")
    beside = pool.submit(TRAIN, "--epochs", "1000", "--step-s", "0.03", options=("--max-nodes", "1"))
    pool.until_step(name, 10, nodes=2)
    pool.until_step(beside, 10, nodes=1)
    life = pool.trainer(name).nodes[1].partition(".")[2]
    (leaving,) = [a for i, a in enumerate(pool.agents) if life in (pool.folder / f"agent{i}.log").read_text()]
    leaving.send_signal(signal.SIGTERM)
    assert leaving.wait(60) == 0
    assert any("on notice [True]" in line for line in noted(pool.folder, "saved"))
    pool.until_step(name, pool.trainer(name).step + 5, nodes=1)
    for trainer in (name, beside):
        pool.pilot("cancel", trainer)


FAILS_LATER = """
import torch
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(20):
    weight.square().sum().backward()
    optimizer.step()
raise ValueError("evaluation")
"""
"""A script that saves nothing fails again at the same place, however often it is restarted."""


def test_a_script_that_fails_has_failed(pool: Pool) -> None:
    bad, later = pool.folder / "bad.py", pool.folder / "later.py"
    bad.write_text("raise ValueError('no such data set')\n")
    later.write_text(FAILS_LATER)
    pool.up()
    pool.agent()
    names = [pool.submit(bad, options=("--ddp",)), pool.submit(later, options=("--ddp",))]
    failed = pool.until("both have failed", lambda s: all(s.trainer(name).phase == "failed" for name in names))
    reasons = [failed.trainer(name).reason for name in names]
    assert "ValueError: no such data set" in reasons[0]
    assert "without a new step" in reasons[1] and "ValueError: evaluation" in reasons[1]


KEEPS_A_THREAD = """
import ctypes
import torch
libc = ctypes.CDLL(None)
libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.pause, None)
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.square().sum().backward()
optimizer.step()
"""
"""As scipy's linear algebra does (with Lightning, for one): a thread that is not detached, as Python's are."""


def test_a_script_with_a_thread_that_stays_finishes(pool: Pool) -> None:
    script = pool.folder / "thread.py"
    script.write_text(KEEPS_A_THREAD)
    pool.up()
    pool.agent()
    name = pool.submit(script, options=("--ddp",))
    assert pool.pilot("wait", name).stdout == f"{name} finished\n"
