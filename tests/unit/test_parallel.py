"""The benchmark of how many trainers run at once."""

import json
from pathlib import Path

from click.testing import CliRunner

from benchmarks import parallel
from pilot.core.ids import NodeId
from pilot.research.traces.changes import Change, write_changes
from pilot.research.traces.synthesis import HOUR_S
from pilot.research.traces.workload import read_workload

NODES = tuple(NodeId(f"n{k}") for k in range(8))


def test_node_hours_are_those_before_the_end() -> None:
    changes = [Change(1800.0, joined=NODES), Change(3600.0, left=NODES[:4]), Change(9000.0, joined=NODES[:1])]
    assert parallel.node_hours(changes, 7200.0) == 8 * 0.5 + 4 * 1.0
    assert parallel.node_hours([], 7200.0) == 0


def test_drawn_trainers_have_more_work_than_the_pool_can_do(tmp_path: Path) -> None:
    rows = read_workload(*parallel.write_workload(tmp_path, 1, 4000.0))
    work_s = sum(row.samples / row.spec.curve.single_node_rate() for row in rows if row.spec.curve is not None)
    assert 1.5 * 4000 <= work_s / HOUR_S < 1.6 * 4000
    assert len({row.curve for row in rows}) == 7
    assert len(read_workload(*parallel.write_workload(tmp_path, 1, 1.0))) == parallel.FEWEST


def test_a_table_compares_bounds_on_a_given_trace(tmp_path: Path) -> None:
    events, out = tmp_path / "events.csv", tmp_path / "rows.json"
    write_changes(events, [Change(0.0, joined=NODES), Change(3600.0, left=NODES)])
    trainers, curves = parallel.write_workload(tmp_path, 1, 8.0)
    given = [f"{events}", "--trainers", f"{trainers}", "--curves", f"{curves}", "--bounds", "1,8", "--hours", "0.5"]
    result = CliRunner().invoke(parallel.main, [*given, "--json", f"{out}"])
    assert result.exit_code == 0, result.output
    one, eight = json.loads(out.read_text())
    assert (one["most"], one["work"], eight["most"]) == (1, 1.0, 8)
    assert eight["work"] > 1
    assert "bound" in result.output
