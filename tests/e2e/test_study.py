"""Studies on real pilots: trials train, are shelved, promoted, killed, and the best one goes on."""

from __future__ import annotations

import csv
import io
import shlex
import time
from pathlib import Path

import msgspec
import pytest

from pilot.protocol.requests import StudyList, StudyStatus, TrialList
from tests.e2e.acts import replayed
from tests.pools import LIMIT_S, Pool

EXAMPLES = Path(__file__).parents[2] / "examples"


def study(pool: Pool) -> StudyStatus:
    output = pool.pilot("study", "status", "--json").stdout
    return msgspec.json.decode(output, type=StudyList).studies[0]


def until(pool: Pool, state: str, asked: int = 0) -> StudyStatus:
    """Wait until the study is in this state, and this many trials have begun."""
    deadline = time.monotonic() + 2 * LIMIT_S
    while (now := study(pool)).state != state or now.asked < asked:
        assert time.monotonic() < deadline, now
        assert now.state != "stopped", now.reason
        time.sleep(0.5)
    return now


def run(pool: Pool, trials: int, *space: str, script: str = "hpo_digits.py") -> None:
    """Submit the study, with two rungs; a trial has one node."""
    options = ["--name", "s", "--trials", str(trials), "--metric", "accuracy:max", "--rungs", "1,3", "--max-nodes", "1"]
    pool.pilot("study", "run", *options, *space, EXAMPLES / script)


@pytest.mark.slow
def test_a_small_study_and_what_becomes_of_its_best_trial(pool: Pool) -> None:
    pool.up()
    pool.agent()
    pool.agent()
    run(pool, 3, "--param", "lr=log:1e-3:1", "--param", "width=choice:16,32")
    over = until(pool, "over")
    assert over.best is not None
    assert over.by_state["complete"] >= 1
    assert len(over.best.values) == 2
    rows = list(csv.DictReader(io.StringIO(pool.pilot("study", "export", "s", "--csv").stdout)))
    assert [row["trial"] for row in rows] == ["0", "1", "2"]
    pool.pilot("study", "report", "s")
    assert "<svg" in (pool.folder / "s.html").read_text()
    assert "s-0" in pool.pilot("study", "trials", "s").stdout
    best = pool.pilot("study", "best", "s").stdout
    go_on, export = (line.split(":", 1)[1] for line in best.splitlines() if line.startswith(("train", "export")))
    pool.pilot(*shlex.split(export)[1:])
    more = msgspec.json.decode(pool.pilot("ls", "--json").stdout)
    step = next(t["step"] for t in more["trainers"] if t["trainer"] == over.best.trainer)
    pool.pilot(*shlex.split(go_on)[1:3], over.best.trainer, "--name", "final", *shlex.split(go_on)[4:], "--epochs=4")
    pool.pilot("wait", "final")
    final = pool.trainer("final")
    assert (final.phase, final.step >= step) == ("finished", True)
    pool.pilot("down")
    later = csv.DictReader(io.StringIO(pool.pilot("study", "export", "s", "--csv").stdout))
    assert [row["accuracy_1"] for row in later] == [row["accuracy_1"] for row in rows]
    assert study(pool).by_state == over.by_state
    assert "cannot write" in pool.pilot("study", "report", "s", "--output", "/nosuch/s.html", check=False).stderr


@pytest.mark.slow
def test_the_command_of_the_help_trains_the_best_trial_to_the_end_of_its_script(pool: Pool) -> None:
    pool.up()
    pool.agent()
    pool.agent()
    shown = pool.pilot("study", "--help").stdout
    command = next(line.split() for line in shown.splitlines() if line.split()[:3] == ["pilot", "study", "run"])
    command[command.index("--trials") + 1] = "3"
    words = [str(EXAMPLES.parent / word) if word.startswith("examples/") else word for word in command[1:]]
    pool.pilot(*words, "--", "--epochs=5")
    over = until(pool, "over")
    assert over.best is not None and (over.best.state, over.best.reports) == ("finished", 5)
    trials = msgspec.json.decode(pool.pilot("study", "trials", over.study, "--json").stdout, type=TrialList).trials
    assert {trial.state: trial.phase for trial in trials} == {"finished": "finished", "shelved": "shelved"}
    assert pool.trainer(over.best.trainer).step == 5 * 44
    table = pool.pilot("study", "trials", over.study).stdout
    assert "accuracy_3" in table and "accuracy_end" in table
    assert "after 1, 3 reports and when the script ends" in pool.pilot("study", "status").stdout
    assert "after 5 reports" in pool.pilot("study", "best", over.study).stdout


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("script", ["hpo_digits.py", "nas_digits.py"])
def test_twelve_trials_on_four_pilots_of_which_one_is_killed_and_so_is_the_coordinator(pool: Pool, script: str) -> None:
    space = ["--space", str(EXAMPLES / "nas_space.py")]
    if script == "hpo_digits.py":
        space = ["--param", "lr=log:1e-3:1", "--param", "width=choice:16,32,64"]
    pool.up("--pilots", "0")
    agents = [pool.agent() for _ in range(4)]
    run(pool, 12, *space, script=script)
    until(pool, "running", asked=5)
    pool.kill_tree(agents[0])
    pool.agent()
    pool.kill_for_good()
    pool.up("--pilots", "0")
    over = until(pool, "over")
    assert (over.asked, over.trials) == (12, 12)
    trials = msgspec.json.decode(pool.pilot("study", "trials", "s", "--json").stdout, type=TrialList).trials
    assert all(trial.values and trial.state in ("complete", "shelved") for trial in trials)
    replayed(pool)
