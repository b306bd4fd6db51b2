"""A script for torchrun through its generations: real processes, MPI and gloo, but no pool."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest

from pilot.core.commands import PauseGroup, StopWorker
from pilot.protocol import wire
from tests.integration.plane import Plane, plane

BOOT, SCRIPT = Path(__file__).with_name("boot.py"), Path(__file__).with_name("train.py")
WRITES_ENVIRONMENT = """
import json, os, signal, sys, time
json.dump(dict(os.environ), open(sys.argv[1], "w"))
time.sleep(1e6)
"""


def noted(folder: Path, word: str) -> list[str]:
    """The script's notes that contain ``word``, without the times."""
    log = folder / "steps"
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.partition(" ")[2] for line in lines if word in line]


def until_noted(cluster: Plane, word: str) -> None:
    seen = len(noted(cluster.folder, word))
    cluster.wait(lambda: len(noted(cluster.folder, word)) > seen, f"{word!r}, once more")


def until_measured(cluster: Plane, generation: int) -> None:
    cluster.wait(lambda: generation in measured(cluster), f"what the change to generation {generation} took")


def measured(cluster: Plane) -> set[int]:
    return {report.generation for report in cluster.reports() if report.rescale_s is not None}


def test_it_goes_on_from_what_it_saved_when_one_joins_leaves_or_dies(tmp_path: Path) -> None:
    with plane(tmp_path, BOOT, str(SCRIPT), "500", "0.01", str(tmp_path / "steps"), warm_ranks=2) as cluster:
        first, second, third = cluster.start(3)
        cluster.form([first])
        until_noted(cluster, "0/1 saved")
        cluster.form([first, second], switch=True)
        until_noted(cluster, "0/2 saved")
        until_measured(cluster, 2)
        cluster.form([first], switch=True)
        until_noted(cluster, "0/1 saved")
        until_measured(cluster, 3)
        cluster.form([third, first])
        until_noted(cluster, "0/2 saved")
        cluster.kill(third)
        cluster.dissolve()
        cluster.form([first])
        until_noted(cluster, "0/1 saved")
        step = cluster.reports()[-1].step
        cluster.wait_step(step + 10)
        reports = sorted(cluster.reports(), key=lambda report: report.generation)
        cluster.stop()
    began = [int(line.split()[-1]) for line in noted(tmp_path, "begins")]
    assert began[0] == 0
    assert began == sorted(began)
    assert began[-1] > 0
    assert [report.step for report in reports] == sorted(report.step for report in reports)
    assert all(report.rescale_s > 0 for report in reports if report.rescale_s is not None)


def test_it_saves_on_notice_and_a_pause_waits_for_that(tmp_path: Path) -> None:
    arguments = (str(SCRIPT), "500", "0.01", str(tmp_path / "steps"), "notice")
    with plane(tmp_path, BOOT, *arguments, warm_ranks=1) as cluster:
        group = cluster.start(2)
        cluster.form(group)
        until_noted(cluster, "step")
        for node in group:
            node.tell(PauseGroup("t1", cluster.generation, (), ""))
        for node in group:
            cluster.wait_for(node, wire.RankPaused, cluster.generation)
        assert any("on notice [True]" in line for line in noted(tmp_path, "saved"))
        assert not list(tmp_path.glob("*.notice"))
        cluster.stop()


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_has_the_environment_that_torchrun_gives(tmp_path: Path, ranks: int) -> None:
    script = tmp_path / "writes.py"
    script.write_text(WRITES_ENVIRONMENT.replace("sys.argv[1]", "f\"{sys.argv[1]}.{os.environ['RANK']}\""))
    with plane(tmp_path, BOOT, str(script), str(tmp_path / "env"), ranks_per_node=ranks, warm_ranks=1) as cluster:
        cluster.form(cluster.start(2))
        cluster.wait(lambda: all((tmp_path / f"env.{rank}").exists() for rank in range(2)), "two files")
        family = psutil.Process(os.getpid()).children(recursive=True)
        listening = {c.laddr for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    written = [json.loads((tmp_path / f"env.{rank}").read_text()) for rank in range(2)]
    assert [(t["RANK"], t["WORLD_SIZE"]) for t in written] == [("0", "2"), ("1", "2")]
    assert [t["LOCAL_RANK"] for t in written] == (["0", "1"] if ranks == 2 else ["0", "0"])
    assert [t["GROUP_RANK"] for t in written] == (["0", "0"] if ranks == 2 else ["0", "1"])
    assert len({(t["MASTER_ADDR"], t["MASTER_PORT"], t["PILOT_CHECKPOINT"]) for t in written}) == 1
    assert ("127.0.0.1", int(written[0]["MASTER_PORT"])) in listening
    assert "PILOT_CONTROL_FD" not in written[0]


def test_a_script_that_fails_ends_its_generation_with_its_last_words(tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text("raise ValueError('no such data set')\n")
    with plane(tmp_path, BOOT, str(script), warm_ranks=1) as cluster:
        (node,) = cluster.start(1)
        cluster.form([node], wait=False)
        broken = cluster.wait_for(node, wire.GroupBroken, 1)
        assert broken.reason == "the script ended with status 1: ValueError: no such data set"


def test_where_rank_0_comes_to_the_end_the_trainer_has_finished(tmp_path: Path) -> None:
    with plane(tmp_path, BOOT, str(SCRIPT), "3", "0", str(tmp_path / "steps"), warm_ranks=1) as cluster:
        group = cluster.start(2)
        cluster.form(group)
        finished = cluster.wait_finished()
        assert (finished.step, finished.samples) == (3 * 8, 3 * 8 * 2)
        for node in group:
            node.tell(StopWorker("t1", "", "finished"))
        cluster.stop()
    assert noted(tmp_path, "done") == ["0/2 done"]
