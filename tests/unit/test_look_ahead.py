"""The look-ahead benchmark on a trace: its table, and what its last rows leave out."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from benchmarks import look_ahead
from pilot.core.curves.curve import Curve
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Candidate, Problem
from pilot.core.pool.losses import LossRate

EVENTS = "time_s,node,event\n0,n1,join\n0,n2,join\n300,n1,leave\n600,n3,join\n3600,n2,leave\n"
TRAINERS = "trainer,submit_s,min_nodes,max_nodes,rescale_up_s,rescale_down_s,samples,curve\n" + "".join(
    f"{name},0,1,4,20,10,{samples},0\n" for name, samples in (("a", 8000), ("b", 12000), ("c", 9e9))
)
CURVES = '[{"nodes": [1, 2, 4], "samples_per_s": [10.0, 19.0, 35.0]}]'


def test_the_table_compares_the_trainers_that_ended_in_all_replays(tmp_path: Path) -> None:
    for name, text in (("events.csv", EVENTS), ("trainers.csv", TRAINERS), ("curves.json", CURVES)):
        (tmp_path / name).write_text(text)
    given = [str(tmp_path / name) for name in ("events.csv", "trainers.csv", "curves.json")]
    options = [given[0], "--trainers", given[1], "--curves", given[2], "--rows", "0,5"]
    lines = CliRunner(catch_exceptions=False).invoke(look_ahead.main, options).stdout.splitlines()
    number = r"\d+\.\d% \| \d+\.\d% \| \d+\.\d% \| [23] \| \d+ / \d+ \|"
    assert lines[0].startswith("2 trainers ended in all")
    for line, name in zip(lines[-2:], ("dp`, all sizes", "rolling-horizon-costs`"), strict=True):
        assert re.fullmatch(rf"\| `{re.escape(name)} \| {number}", line), lines


def test_each_of_the_last_rows_leaves_out_one_thing() -> None:
    trainer = Candidate(TrainerId("t"), 0, 1, 4, Curve.proportional(), 1.0, 1.0, left_s=60.0)
    problem = Problem(4, 120.0, (trainer,), losses=LossRate(0.1, 0.1))
    _, preemptions, steps, ends, both = (row.change(problem) for row in look_ahead.ROWS[-5:])
    assert (preemptions.losses.events_per_s, preemptions.step_s) == (0.0, problem.step_s)
    assert (steps.step_s * look_ahead.STEPS, steps.losses) == (problem.t_fwd_s, problem.losses)
    assert [c.left_s for c in ends.candidates] == [c.left_s for c in both.candidates] == [None]
    assert both.step_s == steps.step_s
