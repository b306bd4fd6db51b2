"""A script is checked on its first node before it gets a second one: real pools, real checks."""

from __future__ import annotations

import stat
from pathlib import Path

import psutil
import pytest

from pilot.cli.main import run
from pilot.protocol.pool_status import PoolStatus, TrainerStatus
from tests.pools import TRAIN, Pool

WRONG = TRAIN.read_text().replace("mse_loss(model(x), y)", 'mse_loss(model(x), y, reduction="sum")')
SLOW = f"import os, time\nif os.nice(0) == 10:\n    time.sleep(10000)\n{TRAIN.read_text()}"
CHECK_S = 300.0
"""A check has a low priority, so on a busy machine it takes long."""


@pytest.fixture
def checking(pool: Pool) -> Pool:
    pool.check = "auto"
    pool.up()
    return pool


def submit(pool: Pool, script: Path) -> str:
    endless = ("--epochs", "100000", "--step-s", "0.05")
    return pool.submit(script, *endless, options=pool.gains())


def until_checked(pool: Pool, name: str, check: str) -> TrainerStatus:
    """Wait until the check of the trainer's script has come so far."""
    before = ("waiting",) if check == "running" else ("waiting", "running")

    def is_over(status: PoolStatus) -> bool:
        trainer = status.trainer(name)
        assert trainer.phase != "failed", trainer.reason
        return trainer.check not in before

    found = pool.until(f"its check: {check}", is_over, CHECK_S).trainer(name)
    assert found.check == check, found.check_text
    return found


def checks(script: Path) -> list[psutil.Process]:
    """The checks that run for ``script``."""
    found = [process for process in psutil.process_iter() if "pilot.agent.check_program" in _command(process)]
    return [process for process in found if process.cwd() == str(script.parent)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_wrong_script_stays_on_one_node_until_it_is_mended(
    checking: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pool, script = checking, tmp_path / "train.py"
    for variable in ("PILOT_RUN_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, pool.environment()[variable])

    def shown(*command: str) -> str:
        """What a command prints, without a process of its own."""
        assert run([*command]) == 0
        return " ".join(capsys.readouterr().out.split())

    for _ in range(2):
        pool.agent()
    script.write_text(WRONG)
    name = submit(pool, script)
    script.write_text("raise SystemExit('an edit after the submission')\n")
    beside = until_checked(pool, name, "running")
    assert len(beside.nodes) == len(beside.target) == 1
    assert "being checked on" in shown("ls")
    assert "It stays on one node until its script has been checked" in shown("explain", name)
    wrong = until_checked(pool, name, "differs")
    assert "the loss is not a mean over the" in wrong.check_text
    pool.until_step(name, wrong.step + 20, nodes=1)
    assert pool.trainer(name).target == wrong.target
    for command in (("status",), ("ls",), ("status", name), ("explain", name)):
        assert "stays on one node: " in shown(*command)
    (log,) = (pool.run_dir / "trainers" / name / "logs").glob("*.log")
    assert log.read_text().count("pilot check of its script: differs") == 1
    pool.pilot("cancel", name)
    pool.until("it has ended", lambda s: s.trainer(name).phase == "cancelled")
    script.write_text(TRAIN.read_text())
    pool.pilot("resume", name)
    mended = until_checked(pool, name, "passed")
    assert "train the same on changing nodes" in mended.check_text
    pool.until_step(name, mended.step + 1, nodes=2)
    pool.pilot("cancel", name)
    kept = {file: file.stat() for file in (pool.run_dir / "checks").iterdir()}
    assert [stat.S_IMODE(status.st_mode) for status in kept.values()] == [0o600]
    again = submit(pool, script)
    until_checked(pool, again, "passed")
    assert [file.stat().st_mtime_ns for file in kept] == [status.st_mtime_ns for status in kept.values()]


def test_a_check_ends_with_its_node_and_begins_anew_on_the_next(checking: Pool, tmp_path: Path) -> None:
    pool, script = checking, tmp_path / "train.py"
    script.write_text(SLOW)
    first = pool.agent()
    name = submit(pool, script)
    (node,) = until_checked(pool, name, "running").nodes
    pool.until("its process runs", lambda _: bool(checks(script)))
    pool.kill_tree(first)
    pool.agent()
    pool.until(
        "it runs elsewhere", lambda s: s.trainer(name).check == "running" and node not in s.trainer(name).check_text
    )
    pool.until("its process runs", lambda _: bool(checks(script)))
    pool.pilot("cancel", name)
    pool.until("it has ended", lambda _: not checks(script))
