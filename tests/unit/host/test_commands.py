"""Commands that fail or hang are reported in their own words."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from pilot.core.errors import SubmitError
from pilot.host.commands import run_command


def test_a_command_that_works() -> None:
    assert run_command([sys.executable, "-c", "print(3)"], 20) == "3\n"


@pytest.mark.parametrize(
    ("command", "message", "transient"),
    [
        (["no-such-command"], "no-such-command is not on this machine's PATH", False),
        (
            [sys.executable, "-c", "import sys; sys.exit('slurm: first\\nInvalid user id')"],
            r"failed: Invalid user id",
            True,
        ),
    ],
)
def test_a_command_that_fails(command: list[str], message: str, transient: bool) -> None:
    with pytest.raises(SubmitError, match=message) as caught:
        run_command(command, 20)
    assert caught.value.transient is transient


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = tmp_path / "squeue"
    script.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {pids}\nwait\n")
    script.chmod(0o755)
    with pytest.raises(SubmitError, match=r"did not answer within 0\.5 s"):
        run_command([str(script)], 0.5)
    child = int(pids.read_text())
    psutil.wait_procs([p for p in psutil.process_iter() if p.pid == child], timeout=10)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
