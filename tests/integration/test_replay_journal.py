"""``pilot replay --journal``: a run's journal reproduces the same commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pilot.cli.main import run
from pilot.core.commands import Command
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.events import Event
from pilot.core.ids import TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.planners import dp
from pilot.research.sim.driver import SimConfig, Simulation
from pilot.research.traces.synthesis import PUBLISHED, draw
from pilot.research.traces.workload import WorkloadRow
from pilot.rundir.entries import Decision
from pilot.rundir.journal import FORMAT, Header, header_line
from pilot.service.settings import Settings


class Journaled(Coordinator):
    """A core that keeps journal lines of its decisions."""

    def __init__(self) -> None:
        super().__init__(Settings().config())
        header = Header(FORMAT, "0", "test", 0.0, {}, {})
        self.lines = [header_line(header)]

    def handle(self, now_s: float, event: Event) -> list[Command]:
        commands = super().handle(now_s, event)
        self.lines.append(Decision(len(self.lines), now_s, event, tuple(commands)).line())
        return commands


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of two simulated hours, with plans and losses."""
    changes = draw(PUBLISHED["summit"].on(64), 7200.0, seed=2)
    curve = Curve.of([(1, 10.0), (8, 70.0)])
    submissions = [
        WorkloadRow(TrainerSpec(TrainerId(f"t{k}"), max_nodes=8, curve=curve, fixed_curve=True), 60.0 * k, 2e4, 0)
        for k in range(20)
    ]
    core = Journaled()
    Simulation(core, dp.plan, changes, submissions, SimConfig(7200.0)).run(lambda: False, lambda _: None)
    path = tmp_path_factory.mktemp("run") / "journal.jsonl"
    path.write_bytes(b"".join(core.lines))
    return path


def test_the_same_events_give_the_same_commands(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "--journal", str(journal)]) == 0
    said = capsys.readouterr().out
    assert "gave the same" in said
    assert int(said.split()[0]) > 100


def test_its_report_is_the_pools(journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "--journal", str(journal), "--report", str(tmp_path / "told")]) == 0
    page = tmp_path / "told" / "index.html"
    assert f"report: {page}" in capsys.readouterr().err
    assert "was up for" in page.read_text()


def test_what_a_replay_lacks_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "week.csv.gz"]) == 2
    assert "missing: --trainers, --curves" in capsys.readouterr().err


def test_a_difference_is_named_and_fails(journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    number = next(k for k, line in enumerate(lines) if b"StartWorker" in line and b'"node"' in line)
    changed = lines[number].replace(b"the plan gives it this node", b"chance gives it this node", 1)
    (tmp_path / "journal.jsonl").write_bytes(b"".join([*lines[:number], changed, *lines[number + 1 :]]))
    assert run(["replay", "--journal", str(tmp_path / "journal.jsonl")]) == 1
    assert f"the replay differs: entry {number} " in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "{}\n", "time_s,node,event\n"])
def test_a_file_that_is_no_journal_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (tmp_path / "journal.jsonl").write_text(content)
    assert run(["replay", "--journal", str(tmp_path / "journal.jsonl")]) == 2
    said = capsys.readouterr().err.strip()
    assert "journal.jsonl:1: " in said and "\n" not in said


def test_a_journal_that_is_not_there_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "--journal", str(tmp_path / "nothing.jsonl")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_another_budget_is_tried_on_a_run_that_had_none(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "--journal", str(journal), "--budget", "5,1000"]) == 0
    _, small, large = capsys.readouterr().out.splitlines()
    found = re.fullmatch(
        r"with a budget of 5 node-hours: it would be used up after (\d+)m\d+s, and the pool would drain; "
        r"the pool was up for 1h58m, and ([\d,]+) of its ([\d,]+) samples were processed by then",
        small,
    )
    assert found is not None, small
    assert 0 < int(found[1]) < 119
    then, all_of_them = (int(number.replace(",", "")) for number in found.group(2, 3))
    assert 0 <= then < all_of_them
    assert re.fullmatch(
        r"with a budget of 1000 node-hours: .+ would be used \(\d%\) in .*; nothing else would change", large
    )
