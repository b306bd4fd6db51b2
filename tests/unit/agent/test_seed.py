"""The seed for what a script draws before it creates its session."""

from __future__ import annotations

from pathlib import Path

from pilot.agent.fork_server import seed_of
from pilot.cli.submit import launch


def test_it_is_the_trainer_s_own_unless_it_was_given(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    ours = {"PILOT_TRAINER": "t1"}
    given = launch(script, [], "python", (), 5).environment
    assert seed_of(given | ours) == 5
    assert launch(script, [], "python", ()).environment == {}
    assert seed_of(ours) == seed_of(ours) != seed_of({"PILOT_TRAINER": "t2"})
