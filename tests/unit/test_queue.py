"""The benchmark of a queue that one understands."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import queue
from benchmarks.parallel import write_workload
from pilot.core.ids import NodeId
from pilot.research.traces.changes import Change, write_changes


def test_files_belong_together(tmp_path: Path) -> None:
    (tmp_path / "events.csv").touch()
    result = CliRunner().invoke(queue.main, ["waits", "--events", f"{tmp_path / 'events.csv'}"])
    assert result.exit_code == 2
    assert "belong together" in result.output, "what is drawn says nothing about this trace"


@pytest.mark.parametrize("what", ["forecasts", "objectives", "waits"])
def test_a_given_trace_on_which_nobody_ends(tmp_path: Path, what: str) -> None:
    events, out = tmp_path / "events.csv", tmp_path / "rows.json"
    write_changes(events, [Change(0.0, joined=(NodeId("n0"), NodeId("n1")))])
    trainers, curves = write_workload(tmp_path, 1, 8.0)
    given = [what, "--events", f"{events}", "--trainers", f"{trainers}", "--curves", f"{curves}", "--hours", "0.05"]
    result = CliRunner().invoke(queue.main, [*given, "--json", f"{out}"])
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())
    assert {row["stream"] for row in rows} == {"events.csv"}
    assert {row["total_h"] for row in rows if what != "forecasts"} <= {None}
