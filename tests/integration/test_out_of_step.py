"""A script of which some ranks evaluate, or leave the loop, while others train, ends with a line; nothing mixes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilot.protocol import wire
from tests.integration.plane import plane

SCRIPT = Path(__file__).with_name("out_of_step.py")
LINE = "rank {} is in session.evaluate, or at the end of its epoch or loop, while rank {} is in session.step"


@pytest.mark.parametrize(
    ("arguments", "gathers", "sums", "options"),
    [
        (["evaluate", "--rank=0"], 0, 1, {}),
        (["evaluate", "--rank=3"], 3, 0, {}),
        (["stop", "--rank=1"], 1, 2, {}),
        (["evaluate", "--rank=0", "--models=2"], 0, 1, {}),
        (["evaluate", "--rank=0"], 0, 1, {"rails": 2}),
        (["evaluate", "--rank=2"], 2, 3, {"ranks_per_node": 2}),
        (["evaluate", "--rank=1"], 1, 0, {"ranks_per_node": 2}),
    ],
)
def test_the_rank_that_waits_reports_the_difference(
    tmp_path: Path, arguments: list[str], gathers: int, sums: int, options: dict[str, int]
) -> None:
    with plane(tmp_path, SCRIPT, *arguments, **options) as cluster:
        nodes = cluster.start(4)
        cluster.form(nodes)
        with pytest.raises(AssertionError, match=f"{nodes[sums].name} ended with status 1"):
            cluster.wait_finished()
        assert LINE.format(gathers, sums) in nodes[sums].log.read_text()
        assert max((report.step for report in cluster.reports()), default=0) <= 3
        assert not nodes[gathers].heard(wire.TrainerFinished)


@pytest.mark.parametrize("rank", [0, 1])
def test_one_that_evaluates_after_the_loop_waits_for_nobody(tmp_path: Path, rank: int) -> None:
    with plane(tmp_path, SCRIPT, "evaluate after the loop", f"--rank={rank}") as cluster:
        nodes = cluster.start(2)
        cluster.form(nodes)
        cluster.wait_finished()
        cluster.stop()
        assert "evaluated 1" in nodes[rank].log.read_text()
