"""``pilot down`` does not claim that nothing is left if something is."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pilot.cli import control
from pilot.cli.control import refuse_disorder
from pilot.core.errors import PilotError
from pilot.protocol.requests import Draining
from pilot.rundir.rundir import Ended, RunDir, write_end

LEFT = [
    (Ended(jobs_left=("17", "18")), "these jobs still exist; cancel them by hand: 17, 18"),
    (Ended(jobs_unknown="qstat: no answer"), "cannot tell whether jobs of this pool are left: qstat: no answer"),
    (Ended(nodes_left=("a.1", "b.2")), "it was stopped before these nodes had left: a.1, b.2"),
    (Ended(unsaved=("t1",)), "the state of these trainers could not be written: t1"),
    (Ended(failure="disk full", unsaved=("t1",)), "it failed: disk full; the state of these trainers could not be"),
    (None, "it was killed before it could report what is left"),
]


@pytest.mark.parametrize(("how", "text"), LEFT)
def test_what_is_left_or_lost_is_reported(tmp_path: Path, how: Ended | None, text: str) -> None:
    rundir = RunDir(tmp_path)
    if how is not None:
        write_end(rundir.ended, how)
    with pytest.raises(PilotError) as raised:
        refuse_disorder(tmp_path)
    assert str(raised.value).startswith(f"the coordinator has ended, but: {text}")
    assert str(raised.value).endswith(f"its log is {rundir.log}")


def test_a_damaged_report_is_one_clear_line(tmp_path: Path) -> None:
    RunDir(tmp_path).ended.write_text('{"jobs_left": 3}')
    with pytest.raises(PilotError, match=r"cannot read how the coordinator ended from .*ended.json"):
        refuse_disorder(tmp_path)


def test_a_drain_that_went_well_is_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OneNode:
        def down(self) -> Draining:
            return Draining(run_dir=str(tmp_path), nodes=1)

    write_end(RunDir(tmp_path).ended, Ended())
    monkeypatch.setattr(control, "pool_at", lambda _: OneNode())
    result = CliRunner().invoke(control.down, ["--run-dir", str(tmp_path)])
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, f"draining 1 node ({tmp_path})")


def test_the_cause_of_a_wait_is_reported_once_and_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    causes = iter(["t1 (writing a checkpoint)", "t1 (writing a checkpoint)", "", "2 nodes to leave"])
    owners = iter([1] * 4 + [None])
    monkeypatch.setattr(control, "ASK_EVERY_S", -1.0)
    monkeypatch.setattr(control, "_waits_for", lambda _: next(causes))
    monkeypatch.setattr(control, "owner", lambda _: next(owners))
    reported: list[str] = []
    control.wait_until_gone(tmp_path, 60.0, reported.append)
    assert reported == ["waiting for t1 (writing a checkpoint)", "waiting for 2 nodes to leave"]
