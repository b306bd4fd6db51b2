"""``pilot events``: read from the journal of a pool that is down, and followed while its coordinator writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pilot.cli import events
from pilot.cli.main import run
from pilot.core.coordinator import Coordinator
from pilot.core.events import (
    Event,
    GroupFormed,
    LedgerRange,
    PlanFailed,
    PoolChanged,
    Progress,
    TrainerFinished,
    TrainerSubmitted,
)
from pilot.core.ids import Generation, NodeId, PlanId, TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.rundir import rundir, segments
from pilot.rundir.journal import FORMAT, Header
from pilot.rundir.rundir import RunDir
from pilot.service.durability.journal_writer import JournalWriter


class Writing:
    """A coordinator's journal."""

    def __init__(self, root: Path) -> None:
        self.core = Coordinator()
        self.writer = JournalWriter.create(RunDir(root).journal, Header(FORMAT, "0.1.0", "pool-1", 1.7e9, {}, {}))

    def put(self, event: Event) -> None:
        now_s = self.core.now_s + 1
        self.writer.decided(now_s, event, self.core.handle(now_s, event)).result(10)

    def end_segment(self) -> None:
        self.writer.end_segment(self.core.now_s, segments.state_digest(self.core), b"")


@pytest.fixture
def writing(tmp_path: Path) -> Writing:
    made = Writing(tmp_path)
    made.put(PoolChanged(joined=(NodeId("n1"),)))
    made.end_segment()
    made.put(TrainerSubmitted(TrainerSpec(TrainerId("vit"))))
    return made


def test_of_a_pool_that_is_down(writing: Writing, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writing.writer.close()
    assert run(["events", "--run-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[21:] for line in lines] == ["n1 joined", "vit: submitted, for 1 to 64 nodes"]
    assert run(["events", "--run-dir", str(tmp_path), "--json", "--trainer", "vit"]) == 0
    (event,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (event["unix_s"], event["kind"], event["trainer"], event["event"]) == (1.7e9 + 2, "trainer", "vit", 2)
    assert run(["events", "--run-dir", str(tmp_path), "-n", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_plan_that_a_newer_problem_superseded_is_not_missed(
    writing: Writing, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writing.put(TrainerSubmitted(TrainerSpec(TrainerId("cnn"))))
    writing.put(PlanFailed(PlanId(2), "superseded by plan 3"))
    writing.put(PlanFailed(PlanId(3), "no answer within 10 s"))
    writing.writer.close()
    assert run(["events", "--run-dir", str(tmp_path)]) == 0
    plans = [line[21:] for line in capsys.readouterr().out.splitlines() if "plan" in line]
    assert plans == ["no plan: no answer within 10 s"]


def follow(monkeypatch: pytest.MonkeyPatch, acts: list[Callable[[], object]]) -> None:
    """Before each look at the journal, one of ``acts`` happens; with the last one the coordinator is gone."""

    def owner(_rundir: RunDir) -> int | None:
        acts.pop(0)()
        return 1 if acts else None

    monkeypatch.setattr(rundir, "owner", owner)
    monkeypatch.setattr(events, "POLL_S", 0.0)


def test_followed_through_the_end_of_a_segment(
    writing: Writing, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each entry once, including those written while the coordinator goes down."""
    acts = [
        lambda: writing.put(PoolChanged(joined=(NodeId("n2"),))),
        lambda: (writing.put(PoolChanged(joined=(NodeId("n3"),))), writing.end_segment()),
        lambda: writing.put(PoolChanged(joined=(NodeId("n4"),))),
    ]

    follow(monkeypatch, acts)
    assert run(["events", "--run-dir", str(tmp_path), "-f", "-n", "1"]) == 0
    texts = [line[21:] for line in capsys.readouterr().out.splitlines()]
    assert texts == ["vit: submitted, for 1 to 64 nodes", "n2 joined", "n3 joined", "n4 joined"]
    writing.writer.close()


IDENTITY = (("the length of the dataset", "96"), ("global_batch_size", "8"))
FIRST = LedgerRange(Generation(1), 0, 0, 6, 0, 48)
VIT = TrainerId("vit")


@pytest.mark.parametrize(
    ("ranges", "finished", "status", "text"),
    [
        ([FIRST], None, 0, "cover 0 epochs and 48 samples of the next, 48 samples, in 6 steps"),
        ([FIRST, replace(FIRST, step=6, step_end=12, cursor=48, cursor_end=96)], 12, 0, "cover 1 epoch, 96 samples"),
        ([FIRST], 12, 1, "it finished at step 12, and its records end at step 6"),
        ([FIRST, replace(FIRST, step=7, step_end=12, cursor=56, cursor_end=96)], None, 1, "continues at step 7"),
    ],
)
def test_the_ledger_is_proved_as_far_as_the_trainer_got(
    writing: Writing,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    ranges: list[LedgerRange],
    finished: int | None,
    status: int,
    text: str,
) -> None:
    command = ["ledger", "--run-dir", str(tmp_path)]
    assert run([*command, "vit"]) == 1
    assert "no group has reported what it trains on" in capsys.readouterr().out
    writing.put(GroupFormed(VIT, Generation(1), 0, identity=IDENTITY))
    writing.put(Progress(VIT, Generation(1), 6, 0, 48, ledger=tuple(ranges)))
    if finished is not None:
        writing.put(TrainerFinished(VIT, Generation(1), finished, 8 * finished))
    writing.writer.close()
    assert run([*command, "vit"]) == status
    assert text in capsys.readouterr().out
    assert run([*command, "vit", "--json"]) == status
    assert json.loads(capsys.readouterr().out)["proved"] is (status == 0)
    assert run([*command, "vitt"]) == 2
    assert "no trainer named 'vitt' in the journal" in capsys.readouterr().err


def zeroed(path: Path, line: int) -> None:
    """The journal's ``line`` is zeroed, with its end."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:line], bytes(len(lines[line])), *lines[line + 1 :]]))


def test_gaps_of_a_damaged_journal_are_reported_in_their_place(
    writing: Writing, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal.jsonl"
    for number in range(2, 7):
        writing.put(PoolChanged(joined=(NodeId(f"n{number}"),)))
    zeroed(journal, 3)
    acts = [
        lambda: (writing.put(PoolChanged(joined=(NodeId("n7"),))), zeroed(journal, 6)),
        lambda: [writing.put(PoolChanged(joined=(NodeId(f"n{number}"),))) for number in range(8, 10)],
        lambda: None,
    ]

    follow(monkeypatch, acts)
    assert run(["events", "--run-dir", str(tmp_path), "-f"]) == 0
    texts = [line[21:].partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    missing = ["entries 4 to 5 of the journal are missing", "entries 8 to 9 of the journal are missing"]
    assert texts == ["n1 joined", "vit", "n2 joined", missing[0], "n5 joined", "n6 joined", missing[1], "n9 joined"]
    writing.writer.close()
    for command in (["ls"], ["status"], ["report", "--output", str(tmp_path / "report.html")]):
        assert run([*command, "--run-dir", str(tmp_path)]) == 0
    printed, page = capsys.readouterr().out, (tmp_path / "report.html").read_text()
    assert all(text in printed and text in page for text in missing)
    assert run(["replay", "--journal", str(journal)]) == 1
    assert f"the replay differs: {missing[0]}" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["events", "report", "ledger"])
def test_a_directory_in_which_no_pool_has_run_is_bad_input(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = {"report": ["--output", str(tmp_path / "report.html")], "ledger": ["vit"]}.get(command, [])
    assert run([command, *output, "--run-dir", str(tmp_path)]) == 2
    assert f"no pool has run in {tmp_path}" in capsys.readouterr().err
    (tmp_path / "journal.jsonl").write_text("nothing\n")
    assert run([command, *output, "--run-dir", str(tmp_path)]) == 2
    assert "journal.jsonl:1: " in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_a_trainer_that_the_pool_never_had_is_bad_input(
    writing: Writing, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writing.writer.close()
    assert run(["events", "--run-dir", str(tmp_path), "--trainer", "vitt"]) == 2
    assert capsys.readouterr().err == "pilot: no events of a trainer named 'vitt'; pilot ls --all lists the trainers\n"
