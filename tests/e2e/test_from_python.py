"""A Python program submits trainers to a real pool, and watches them; the documents' programs, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pilot
from tests.e2e.acts import script
from tests.pools import LIMIT_S, TRAIN, Pool
from tests.unit.documented import blocks


@pytest.fixture
def up(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Pool:
    """A pool of one node, which is the one that programs find."""
    monkeypatch.setenv("PILOT_RUN_DIR", str(pool.run_dir))
    pool.up()
    pool.agent()
    return pool


def test_a_program_submits_waits_reads_and_cancels(up: Pool) -> None:
    greets = script(up, before="print('hello', sys.argv[1:], os.environ['GREETED'])", epochs=1)
    first = pilot.submit(greets, ["--epochs", 1, Path("x")], name="first", env={"GREETED": "you"}, max_nodes=1)
    assert first.wait(LIMIT_S) == "finished"
    assert "hello ['--epochs', '1', 'x'] you" in first.logs()
    assert (first.status().phase, first.status().max_nodes) == ("finished", 1)
    with pytest.raises(pilot.UserError, match="has already ended"):
        first.cancel()
    lasting = pilot.submit(str(TRAIN), ["--epochs", 100_000, "--step-s", 0.01], sizes=[1, 2])
    with pytest.raises(pilot.PilotError, match="timed out after 0 s"):
        lasting.wait(limit_s=0)
    again = pilot.Trainer(lasting.name)
    again.cancel()
    assert lasting.wait(LIMIT_S) == again.status().phase == "cancelled"
    up.pilot("down")
    assert first.status().phase == "finished" and "hello" in first.logs()
    with pytest.raises(pilot.UserError, match="no trainer named 'other'"):
        pilot.Trainer("other").status()


def test_what_the_command_refuses_a_program_is_refused_in_the_same_words(up: Pool) -> None:
    def refused(*command: str) -> str:
        done = up.pilot("submit", *command, check=False)
        assert done.returncode == 2
        return done.stderr.removeprefix("pilot: ").strip()

    for given, command in (
        ({"name": "not valid"}, ("--name", "not valid", str(TRAIN))),
        ({"start": "nobody"}, ("--from", "nobody", str(TRAIN))),
        ({"env": ["NO_SUCH_VARIABLE"]}, ("--env", "NO_SUCH_VARIABLE", str(TRAIN))),
        ({"ddp": True, "accept_changes": "seed"}, ("--ddp", "--accept-changes", "seed", str(TRAIN))),
        ({"fixed_curve": True}, ("--fixed-curve", str(TRAIN))),
    ):
        with pytest.raises(pilot.UserError) as error:
            pilot.submit(TRAIN, **given)  # type: ignore[arg-type]  # a table of options
        assert str(error.value) == refused(*command)
    with pytest.raises(pilot.UserError, match="arguments: give a list"):
        pilot.submit(TRAIN, "--epochs 3")


def test_the_program_of_the_reference_runs(up: Pool) -> None:
    program = next(block.text for block in blocks("python") if block.page == "reference/api.md")
    script(up, epochs=3).rename(up.folder / "train.py")
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=up.folder,
        env=up.environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert up.trainer("vit").phase == "finished"
