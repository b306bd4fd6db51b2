"""A pool from up to down, and everything that can happen to it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from pilot.core.commands import Solve
from pilot.core.events import PoolChanged
from pilot.doctor.finding import Findings
from pilot.protocol.pool_status import PoolStatus
from pilot.rundir.journal import read
from tests.e2e.acts import crash, training
from tests.e2e.proof import DEMO_LIMIT_S, proved
from tests.pools import TRAIN, Pool


def test_all_are_killed_and_it_resumes_from_the_newest_checkpoint(pool: Pool) -> None:
    name = training(pool, 2, step=40)
    for agent in pool.agents:
        pool.kill_tree(agent)
    pool.until("the pool is empty", lambda s: not s.pool)
    pool.agent()
    pool.until_step(name, 1, nodes=1)
    trainer = pool.finish(name)
    assert trainer.generation >= 2
    assert not any("fresh" in remark for remark in trainer.remarks)
    proved(pool, name)


def test_all_are_preempted_with_notice_and_nothing_is_lost(pool: Pool) -> None:
    name = training(pool, 2, step=30)
    for agent in pool.agents:
        agent.send_signal(signal.SIGTERM)
    assert [agent.wait(30) for agent in pool.agents] == [0, 0]
    pool.until("the pool is empty", lambda s: not s.pool)
    pool.agent()
    trainer = pool.finish(name)
    assert trainer.lost_steps == 0
    assert trainer.redone_steps == 0
    proved(pool, name)


def test_too_few_survivors_park_and_go_on_when_a_pilot_comes(pool: Pool) -> None:
    name = training(pool, 2, "--min-nodes", "2")
    pool.kill_tree(pool.agents[0])
    pool.until("it is paused", lambda s: s.trainers[0].phase == "paused")
    pool.agent()
    pool.trains(name, 2)
    assert pool.finish(name).lost_steps == 0
    proved(pool, name)


def test_a_script_that_raises_has_failed_and_the_others_go_on(pool: Pool, tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import pilot.train\n\ndef read(): raise ValueError('no such data set')\n\nread()\n")
    pool.up()
    pool.agent()
    pool.agent()
    good = pool.submit(TRAIN, "--epochs", "6", "--step-s", "0.02")
    pool.until("it trains", lambda s: s.trainer(good).step >= 5)
    broken = pool.submit(bad)
    status = pool.until("it has failed", lambda s: s.trainers[1].phase == "failed")
    assert "ValueError: no such data set" in status.trainers[1].reason
    assert "ValueError: no such data set" in pool.pilot("status").stdout
    assert msgspec.json.decode(pool.pilot("status", "--json").stdout, type=PoolStatus).trainers[1] == status.trainers[1]
    assert "ValueError: no such data set" in pool.pilot("logs", broken).stdout
    assert pool.pilot("wait", good).stdout == f"{good} finished\n"
    waited = pool.pilot("wait", broken, check=False)
    assert (waited.returncode, waited.stdout) == (1, f"{broken} failed\n")
    assert re.fullmatch(
        rf"{broken} failed: (it failed on .* in the same line: )?ValueError: no such data set\n", waited.stderr
    )
    assert pool.pilot("wait").stdout == "no trainer to wait for\n"


def test_a_process_that_dies_three_times_without_a_step_has_failed(pool: Pool, tmp_path: Path) -> None:
    deadly = tmp_path / "deadly.py"
    deadly.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    pool.up()
    pool.agent()
    name = pool.submit(deadly)
    status = pool.until("it has failed", lambda s: s.trainers[0].phase == "failed")
    reason = status.trainers[0].reason
    assert "died 3 times" in reason
    assert "SIGSEGV" in reason
    assert f"{name}" in reason or "log:" in reason


def edited(script: Path) -> None:
    script.write_text(script.read_text() + "\nraise ValueError('edited')\n")


def test_newcomers_run_the_script_as_it_was_submitted(pool: Pool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import beside\n" + TRAIN.read_text())
    (tmp_path / "beside.py").write_text("")
    pool.up()
    pool.agent()
    name = pool.submit(script, "--epochs", "500", "--step-s", "0.03", options=pool.gains())
    edited(script)
    (tmp_path / "beside.py").unlink()
    pool.until_step(name, 5, nodes=1)
    pool.agent()
    pool.until_step(name, pool.trainer(name).step + 5, nodes=2)
    assert pool.trainer(name).rescales_up == 1
    pool.pilot("cancel", name)


def test_a_node_that_loads_another_version_of_a_module_is_not_let_in(pool: Pool, tmp_path: Path) -> None:
    """The module was not copied, because nothing of the script's text says where it is."""
    script, module = tmp_path / "script" / "train.py", tmp_path / "elsewhere" / "own.py"
    for path, text in ((script, f"import sys\nsys.path.insert(0, {str(module.parent)!r})\nimport own\n"), (module, "")):
        path.parent.mkdir()
        path.write_text(text + (TRAIN.read_text() if path == script else ""))
    pool.up()
    first = pool.agent()
    name = pool.submit(script, "--epochs", "500", "--step-s", "0.03", options=pool.gains())
    pool.until_step(name, 5, nodes=1)
    module.write_text("VERSION = 2\n")
    crash(pool)
    pool.agent()
    changed = f"{module} has changed since this trainer's first node loaded it"
    refused = pool.until("it is refused", lambda s: changed in " ".join(s.trainers[0].remarks))
    assert len(refused.trainers[0].nodes) == 1
    assert "It cannot use further nodes" in pool.pilot("explain", name).stdout
    pool.until_step(name, refused.trainers[0].step + 5, nodes=1)
    pool.kill_tree(first)
    pool.agent()
    stopped = pool.until("it stops", lambda s: s.trainers[0].phase == "stopped").trainers[0]
    assert stopped.reason.startswith(changed)
    assert "\n" not in stopped.reason
    pool.pilot("resume", name)
    pool.until_step(name, stopped.step + 1, nodes=1)
    pool.pilot("cancel", name)


def test_an_edited_live_script_is_refused_for_newcomers_and_no_plan_is_made_for_it(pool: Pool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN.read_text())
    pool.up()
    agents = [pool.agent() for _ in range(2)]
    name = pool.submit(
        script, "--epochs", "500", "--step-s", "0.03", options=("--live", "--min-nodes", "2", *pool.gains())
    )
    first = {node.node for node in pool.until_step(name, 5, nodes=2).pool}
    edited(script)
    pool.kill_tree(agents[1])
    for _ in range(3):
        pool.agent()
    pool.until("the three are there", lambda s: len({node.node for node in s.pool} - first) == 3)
    refused = pool.until(
        "no node more is tried", lambda s: "cannot use further nodes" in " ".join(s.trainers[0].remarks)
    )
    assert "was edited" in " ".join(refused.trainers[0].remarks)
    known = {node.node for node in refused.pool}
    pool.agent()
    after = pool.until("another pilot is there", lambda s: any(node.node not in known for node in s.pool))
    came = {node.node for node in after.pool} - known
    decisions = read(pool.run_dir / "journal.jsonl").decisions
    joining = [d.seq for d in decisions if isinstance(d.event, PoolChanged) and came.intersection(d.event.joined)]
    assert joining  # also pilots that the pool has started itself, and cancels: on a busy machine they come before that
    assert not any(isinstance(c, Solve) for d in decisions if d.seq >= min(joining) for c in d.commands)
    assert pool.trainer(name).phase == "paused"


def test_a_killed_coordinator_is_noticed_and_the_agents_leave_nothing(pool: Pool) -> None:
    pool.orphan_s = 8.0
    name = training(pool, 2)
    pool.kill_for_good()
    refused = pool.pilot("ls", check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "run pilot up for this directory to continue its pool" in refused.stderr
    pool.pilot("logs", name)
    for agent in pool.agents:
        agent.wait(60)
    folder = pool.run_dir / "trainers" / name / "checkpoints"
    assert list(folder.glob("*.h5"))


def test_the_doctor_tries_real_pilots(pool: Pool) -> None:
    site = pool.folder / "by_gloo.py"
    changed = 'site = local.replace(name="by_gloo", between_nodes="gloo")'
    site.write_text(f"from site_configs.local import site as local\n\n{changed}\n")
    output = pool.pilot("doctor", "--site", site, "--pilots", "2", "--json").stdout
    assert output.startswith("{"), "something else wrote to standard output"
    findings = msgspec.json.decode(output, type=Findings).findings
    seen = {finding.check: finding.grade for finding in findings}
    assert [seen[check] for check in ("pilots", "node", "cold", "warm", "allreduce")] == ["ok"] * 5
    summed = [finding.seen for finding in findings if finding.check == "allreduce"]
    assert [" by mpi: " in summed[0], " by gloo: " in summed[1]] == [True, True], summed


OUTPACED = """
from pilot.cli.demo import play
from pilot.cli.main import main

play.EPOCHS, play.ON_FASTER_MACHINES = {"cnn": 1, "mlp": 1}, (1, 1)
main(["demo", "--output", "demo"])
"""


@pytest.mark.long
def test_a_demo_whose_trainers_were_too_fast_is_repeated(pool: Pool) -> None:
    command, environment = [sys.executable, "-c", OUTPACED], pool.environment()
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=pool.folder, env=environment, check=False, timeout=DEMO_LIMIT_S
    )
    assert "trying again with more epochs" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1
    assert "finished too early for this" in done.stderr
