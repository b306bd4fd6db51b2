"""Which pool a command uses if none is given."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from pilot.cli.asking import find_run_dir
from pilot.core.errors import UserError
from pilot.io.known_pools import remember
from pilot.io.rundir import Lock, RunDir


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
