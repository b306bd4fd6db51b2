"""A script is checked on its first node before it gets a second one: real pools, real checks."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pilot.train.check import sandbox
from tests.pools import TRAIN, Pool

WRONG = TRAIN.read_text().replace("mse_loss(model(x), y)", 'mse_loss(model(x), y, reduction="sum")')


@pytest.fixture
def checking(pool: Pool, tmp_path: Path) -> Pool:
    if not sandbox.is_possible(tmp_path):
        pytest.skip("this machine lets users make no namespaces with overlays")
    pool.check = "auto"
    pool.up()
    for _ in range(2):
        pool.agent()
    return pool


def submit(pool: Pool, script: Path) -> str:
    until = ("--epochs", "100000", "--until", str(pool.folder / "enough"), "--step-s", "0.01")
    return pool.submit(script, *until, options=pool.gains())


def test_a_script_that_passes_grows_and_its_verdict_is_kept(checking: Pool) -> None:
    pool = checking
    name = submit(pool, TRAIN)
    beside = pool.until("its check runs", lambda s: s.trainer(name).check == "running").trainer(name)
    assert len(beside.nodes) == len(beside.target) == 1
    assert "being checked on" in pool.pilot("ls").stdout
    assert "It stays on one node until its script has been checked" in pool.pilot("explain", name).stdout
    passed = pool.until("it has passed", lambda s: s.trainer(name).check == "passed").trainer(name)
    assert "train the same on changing nodes" in passed.check_text
    pool.until_step(name, passed.step + 1, nodes=2)
    (kept,) = (pool.run_dir / "checks").iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert str(TRAIN) in kept.read_text()
    pool.finish(name)
    written_s = kept.stat().st_mtime_ns
    again = submit(pool, TRAIN)
    pool.until("its script has passed", lambda s: s.trainer(again).check == "passed")
    assert kept.stat().st_mtime_ns == written_s, "it was checked again"


def test_a_wrong_script_stays_on_one_node_until_it_is_mended(checking: Pool, tmp_path: Path) -> None:
    pool, script = checking, tmp_path / "train.py"
    script.write_text(WRONG)
    name = submit(pool, script)
    script.write_text("raise SystemExit('an edit after the submission')\n")
    wrong = pool.until("it differs", lambda s: s.trainer(name).check == "differs").trainer(name)
    assert "the loss is no mean over the samples" in wrong.check_text
    pool.until_step(name, wrong.step + 20, nodes=1)
    assert pool.trainer(name).target == wrong.target
    for command in (("status",), ("ls",), ("status", name), ("explain", name)):
        assert "stays on one node: " in " ".join(pool.pilot(*command).stdout.split())
    (log,) = (pool.run_dir / "trainers" / name / "logs").glob("*.log")
    assert log.read_text().count("pilot check says: differs") == 1
    pool.pilot("cancel", name)
    script.write_text(TRAIN.read_text())
    pool.pilot("resume", name)
    mended = pool.until("it has passed", lambda s: s.trainer(name).check == "passed").trainer(name)
    pool.until_step(name, mended.step + 1, nodes=2)
    pool.finish(name)


def test_a_check_ends_with_its_worker_and_begins_anew_on_the_next_node(pool: Pool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import time, os\nif os.nice(0) == 19: time.sleep(1000)\n{TRAIN.read_text()}")
    pool.check = "require"
    pool.up()
    first = pool.agent()
    name = submit(pool, script)
    status = pool.until("its check runs", lambda s: s.trainer(name).check == "running")
    pool.kill_tree(first)
    pool.agent()
    pool.until(
        "it runs elsewhere",
        lambda s: s.trainer(name).check == "running" and s.trainer(name).nodes not in ([], status.trainer(name).nodes),
    )
    pool.pilot("cancel", name)
    pool.pilot("wait", name)
    assert not [entry for entry in os.listdir("/proc") if entry.isdecimal() and _checks(Path("/proc", entry), script)]


def _checks(process: Path, script: Path) -> bool:
    try:
        return b"pilot\x00check" in (said := (process / "cmdline").read_bytes()) and os.fsencode(script) in said
    except OSError:
        return False
