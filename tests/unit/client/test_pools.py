"""Which pool a command uses if none is given."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from pilot.client.pools import find_run_dir, pool_at
from pilot.core.errors import PilotError, UserError
from pilot.rundir.rundir import Ended, Lock, RunDir, remember, write_end
from pilot.service.durability.supervisor import MODULE


def _up(stack: ExitStack, root: Path) -> Path:
    root.mkdir(parents=True)
    (root / "journal.jsonl").touch()
    lock = Lock(RunDir(root))
    stack.callback(lock.release)
    remember(root)
    return root


def test_the_one_pool_that_is_up_is_found_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("PILOT_RUN_DIR", raising=False)
    with pytest.raises(UserError, match="no pool is up"):
        find_run_dir(None)
    with ExitStack() as stack:
        vision = _up(stack, tmp_path / "vision")
        assert find_run_dir(None) == vision
        language = _up(stack, tmp_path / "language")
        with pytest.raises(UserError, match=f"several pools are up: {language}, {vision}"):
            find_run_dir(None)
        usual = _up(stack, tmp_path / "state" / "pilot" / "local")
        assert find_run_dir(None) == usual


def _crashed(root: Path) -> Path:
    """The run directory of a coordinator that was killed."""
    with ExitStack() as stack:
        _up(stack, root)
    (root / "connection.json").touch()
    return root


def test_of_several_crashed_pools_none_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("PILOT_RUN_DIR", raising=False)
    vision = _crashed(tmp_path / "state" / "pilot" / "vision")
    assert find_run_dir(None) == vision
    language = _crashed(tmp_path / "state" / "pilot" / "language")
    with pytest.raises(UserError, match=f"several pools are up: {language}, {vision}"):
        find_run_dir(None)


def test_a_crashed_pool_is_not_supervised_by_any_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither because the command is typed in the run directory, nor by a process that only names the supervisor."""
    root = _crashed(tmp_path / "run")
    monkeypatch.chdir(root)
    code = "print(flush=True); input()"
    talker = subprocess.Popen(
        [sys.executable, "-c", code, MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with talker:
        assert talker.stdout is not None
        talker.stdout.readline()
        with pytest.raises(PilotError, match="run pilot up for this directory"):
            pool_at(root, timeout_s=0.2)
        talker.communicate("\n")


@pytest.mark.parametrize(
    ("failure", "ending"), [("", "was killed or crashed"), ("the disk is gone", "failed: the disk is gone")]
)
def test_why_the_coordinator_ended_is_reported_if_it_is_known(tmp_path: Path, failure: str, ending: str) -> None:
    root = _crashed(tmp_path / "run")
    if failure:
        write_end(root / "ended.json", Ended(failure=failure))
    with pytest.raises(PilotError, match=rf"the coordinator in {root} {ending} \(log: "):
        pool_at(root, timeout_s=0.2)
