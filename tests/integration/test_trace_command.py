"""``pilot trace`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pilot.cli.main import run
from pilot.core.pool.node_type import NodeType
from pilot.research.traces.changes import read_changes, types_of, with_types, write_changes
from pilot.research.traces.synthesis import PUBLISHED, draw


def test_a_synthetic_trace_is_described_and_resampled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    week, lab = tmp_path / "week.csv.gz", tmp_path / "lab.csv"
    assert run(["trace", "synth", str(week), "--published", "summit", "--nodes", "512", "--hours", "72"]) == 0
    assert "published: 41.7 joins and 28.6 leaves per hour" in capsys.readouterr().out
    assert run(["trace", "synth", str(lab), "--like", str(week), "--nodes", "64", "--hours", "48", "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert compared["fragment_distance"] < 0.1 and set(compared["traces"]) == {"source", "lab.csv"}
    assert run(["trace", "stats", str(lab), "--output", str(tmp_path / "lab.png")]) == 0
    assert "pool size, median" in capsys.readouterr().out
    assert (tmp_path / "lab.png").read_bytes().startswith(b"\x89PNG")


def test_a_log_becomes_a_trace_that_can_be_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = "".join(
        f"{k} {100 * k} 0 {50 + 37 * k % 90} {1 + k % 3} -1 -1 1 -1 -1 1 1 1 1 1 1 -1 -1\n" for k in range(50)
    )
    (tmp_path / "log.swf").write_text("; MaxNodes: 4\n" + jobs)
    assert run(["trace", "from-swf", str(tmp_path / "log.swf"), str(tmp_path / "log.csv"), "--handover-s", "10"]) == 0
    assert "placement is simulated, first fit by node number" in capsys.readouterr().err
    assert run(["trace", "stats", str(tmp_path / "log.csv")]) == 0


def test_several_accounting_files_become_one_trace(tmp_path: Path) -> None:
    for day, start in (("20261001", 0), ("20261002", 1000)):
        (tmp_path / day).write_text(f"t;E;{day};start={start} end={start + 500} exec_host=x1/0*8\n")
    (tmp_path / "nodes.txt").write_text("x[1-2]\n")
    days = [str(tmp_path / "20261001"), str(tmp_path / "20261002")]
    assert (
        run(["trace", "from-pbs", *days, str(tmp_path / "out.csv"), "--nodes-file", str(tmp_path / "nodes.txt")]) == 0
    )
    assert (tmp_path / "out.csv").read_text() == "time_s,node,event\n0,x2,join\n500,x1,join\n1000,x1,leave\n"


@pytest.mark.parametrize(
    ("arguments", "content", "message"),
    [
        (["from-swf", "LOG", "OUT"], "; MaxProcs: 4\n", "log:1: no '; MaxNodes: N' in the header"),
        (["from-sacct", "LOG", "OUT"], "JobID|Start|End\n", "log:1: no column NodeList"),
        (["from-pbs", "LOG", "OUT"], "nonsense\n", "log:1: expected time;record type;job id;text"),
        (["stats", "LOG"], "time_s,node,event\n0,a,leave\n", "log:2: node a leaves, but it is not in the pool"),
        (["synth", "OUT", "--like", "LOG"], "time_s,node,event\n", "log: the trace is empty"),
        (["synth", "OUT"], "", "give either --like EVENTS or --published NAME"),
        (["synth", "OUT", "--published", "theta", "--hours", "inf"], "", "inf is not in the range 0.01<=x<=100000"),
        (["from-pbs", "LOG", "OUT"], "", "log: no job ran on a node"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], content: str, message: str
) -> None:
    (tmp_path / "log").write_text(content)
    files = {"LOG": str(tmp_path / "log"), "OUT": str(tmp_path / "out.csv")}
    assert run(["trace", *(files.get(argument, argument) for argument in arguments)]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said and "\n" not in said
    assert not (tmp_path / "out.csv").exists()


def test_nodes_of_a_resampled_trace_keep_their_types(tmp_path: Path) -> None:
    changes = draw(PUBLISHED["summit"].on(64), 7200.0, seed=1)
    types = {node: NodeType("v100") for change in changes for node in change.joined}
    write_changes(tmp_path / "week.csv", with_types(changes, types))
    arguments = ["--like", str(tmp_path / "week.csv"), "--hours", "1"]
    assert run(["trace", "synth", str(tmp_path / "lab.csv"), *arguments]) == 0
    made = read_changes(tmp_path / "lab.csv")
    assert types_of(made) == {node: types[node] for change in made for node in change.joined}
