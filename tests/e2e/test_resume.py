"""No work of a user is lost with the pool, through a mistake in the script, or when the trainer ends."""

from __future__ import annotations

import json
import re

import pytest

from pilot.protocol.node_names import shortened
from tests.e2e.proof import proved
from tests.pools import TRAIN, Pool

MENDED = TRAIN.read_text().replace("for _ in session", "for epoch in session")
BROKEN = MENDED.replace("session.step(loss)", "session.step(loss if epoch < 2 else 1 / 0)")


def test_a_pool_that_comes_up_again_has_its_trainers_and_its_history(pool: Pool) -> None:
    pool.up("--pilots", "1")
    pool.submit(TRAIN, "--epochs", "1", "--step-s", "0.01", options=("--name", "short"))
    pool.pilot("wait")
    pool.submit_lasting(options=("--name", "long"))
    before = pool.until_step("long", 30, nodes=1)
    job = before.pool[0].job
    assert job
    pool.pilot("down")
    saved = max(int(s) for s in re.findall(r'"CheckpointWritten".*?"step":(\d+)', journal(pool)))
    past = pool.status()
    assert (past.up, past.coordinator, past.trainer("long").step) == (False, before.coordinator, saved)
    history = pool.pilot("status", "short").stdout
    assert f"short finished: after step {past.trainer('short').step}" in history
    assert re.search(rf"{shortened(before.pool[0].node)} +{job} ", history)
    listed = pool.pilot("ls", "--all").stdout.splitlines()
    assert "is down" in listed[0]
    trainers = [line for line in listed[2:] if not line.startswith(" ")]  # indented lines say why a trainer ended
    assert [line.split()[:2] for line in trainers] == [["short", "finished"], ["long", "queued"]]
    for command in (("explain", "long"), ("logs", "long"), ("nodes",), ("events", "-n", "1")):
        pool.pilot(*command)
    again = pool.pilot("up", "--site", pool.folder / "e2e.py", "--pilots", "1", "--t-fwd-s", "60")
    assert "resumed: long" in again.stdout
    pool.trains("long", 1)
    pool.finish("long")
    assert pool.pilot("wait").stdout == "no trainer to wait for\n"
    status = pool.status()
    long = status.trainer("long")
    assert [t.uid for t in status.trainers] == [t.uid for t in before.trainers]
    assert (long.phase, long.lost_steps, long.redone_steps) == ("finished", 0, 0)
    first, second = json.loads(pool.pilot("status", "long", "--json").stdout)["held_nodes"]
    assert (first["job"], first["until_s"] < second["from_s"]) == (job, True)
    held_s = sum(span["until_s"] - span["from_s"] for span in (first, second))
    assert long.node_seconds == pytest.approx(held_s)
    assert status.node_seconds < status.now_s, "while it was down it held nothing"
    proved(pool, "long")
    pool.pilot("down")
    pool.pilot("up", "--site", pool.folder / "e2e.py", "--pilots", "0", "--fresh")
    assert pool.status().trainers == []
    assert {path.name for path in (pool.run_dir / "earlier").glob("*/*")} == {"journal.jsonl", "journal"}
    pool.pilot("down")


def test_a_script_that_was_mended_goes_on_where_it_failed_and_its_name_is_its_own(pool: Pool) -> None:
    script = pool.folder / "mine.py"
    script.write_text(BROKEN)
    pool.up()
    pool.agent()
    submitted = ("submit", "--name", "mine", script, "--epochs", "4", "--step-s", "0.05")
    pool.pilot(*submitted)
    assert pool.pilot("wait", "mine", check=False).returncode == 1
    failed = pool.trainer("mine")
    assert failed.phase == "failed"
    assert "ZeroDivisionError" in failed.reason
    refused = pool.pilot(*submitted, check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    for choice in ("pilot resume mine", "--from mine", "--replace"):
        assert choice in refused.stderr
    script.write_text(MENDED)
    assert pool.pilot("resume", "mine").stdout.startswith("mine resumed")
    assert pool.pilot("resume", "mine", check=False).returncode == 2
    pool.pilot("wait", "mine")
    done = pool.trainer("mine")
    assert (done.uid, done.reason) == (failed.uid, f"after step {done.step}")
    assert int(re.findall(r'"GroupFormed","trainer":"mine".*?"resumed":(\d+)', journal(pool))[-1]) > 0
    proved(pool, "mine", 4)
    folder = (pool.run_dir / "trainers" / "mine").resolve()
    pool.pilot("submit", "--name", "mine", "--replace", "--from", "mine", script, "--epochs", "5", "--step-s", "0.01")
    assert not folder.exists()
    pool.pilot("wait", "mine")
    assert pool.trainer("mine").uid != done.uid
    assert pool.trainer("mine").step > done.step
    assert pool.pilot("rm", "mine").stdout == "removed mine\n"
    assert (pool.status().trainers, list((pool.run_dir / "trainers").iterdir())) == ([], [])
    pool.pilot("down")


@pytest.mark.slow
def test_who_is_held_gives_its_node_to_another_and_goes_on_after_it(pool: Pool) -> None:
    pool.up()
    pool.agent()
    pool.submit_lasting(options=("--name", "first"))
    pool.until_step("first", 20, nodes=1)
    pool.pilot("hold", "first")
    held = pool.until("it gave its node back", lambda s: not any(n.trainer for n in s.pool)).trainer("first")
    pool.submit(TRAIN, "--epochs", "1", "--step-s", "0.01", options=("--name", "second"))
    pool.pilot("wait", "second")
    assert pool.trainer("first").step == held.step
    pool.pilot("release", "first")
    pool.trains("first", 1)
    assert pool.finish("first").lost_steps == 0
    proved(pool, "first")
    pool.pilot("down")


def journal(pool: Pool) -> str:
    """The lines of the journal's last segment."""
    return (pool.run_dir / "journal.jsonl").read_text()
