"""``pilot status`` as people see it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from pilot.cli.asking import to_json
from pilot.cli.show import console, status_view

TRAINER: dict[str, Any] = {
    "trainer": "vit",
    "phase": "failed",
    "reason": "it raised\n(log: " + "/a/long/path" * 20 + ")",
    "nodes": ["n1"],
    "warming": ["n2"],
    "generation": 3,
    "epoch": 1,
    "step": 40,
    "samples_per_s": None,
    "metrics": {"loss": 0.25},
    "remarks": ["a remark"],
}
STATUS: dict[str, Any] = {
    "coordinator": "polaris-1",
    "site": "polaris",
    "now_s": 100.0,
    "draining": False,
    "trainers": [TRAINER],
    "remarks": ["the scheduler does not answer"],
    "pool": [{"node": "n1", "trainer": "vit", "leaving": True, "since_s": 40.0}],
    "solves": {"count": 2, "planner": "milp", "last_status": "optimal", "answer_s": {"median": 0.02, "max": 0.03}},
    "node_seconds": 60.0,
    "utilisation": {"u": None, "eq_nodes": 0.6},
    "keeper": {
        "running": 1,
        "pending": 3,
        "leaving": 0,
        "endings": {"preempted": 2},
        "held_back": "another job is taking nodes; it comes first",
        "trouble": "",
    },
}


def test_all_of_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(status_view(STATUS), crop=False)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "pool polaris-1 on polaris, up for 100 s"
    assert lines[1] == (
        "pilot jobs: 1 run, 3 wait, 0 leave; ended: 2 preempted; another job is taking nodes; it comes first"
    )
    assert "vit      failed   1 +1           3      1    40          -  0.2500" in lines
    assert "n1 (leaving)  vit      60 s" in lines
    assert {"vit: a remark", "the scheduler does not answer", "  it raised"} <= set(lines)


def test_what_one_copies_is_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(status_view(STATUS), crop=False)
    assert "/a/long/path" * 20 in capsys.readouterr().out


def test_json_has_null_for_a_loss_that_diverged() -> None:
    assert json.loads(to_json([{**TRAINER, "metrics": {"loss": math.nan}}]))[0]["metrics"] == {"loss": None}
