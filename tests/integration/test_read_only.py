"""Commands on a run directory to which they may not write: one of another host's read-only mount, or of mode 0500."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.live_pool import DEADLINE_S, Pool, pool

READERS = ("status", "ls --all", "nodes", "events", "explain a", "status a", "report --output {folder}/page.html")

PROGRAM = """
import sys
from pilot.cli.main import run
from tests.security.fuzz.targets.cli import obey_modes
obey_modes()
sys.exit(max(run([*words.split(), "--run-dir", sys.argv[1]]) for words in sys.argv[2:]))
"""


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Pool]:
    with pool(tmp_path) as made:
        made.submit(name="a")
        yield made


def pilot(live: Pool, *commands: str) -> subprocess.CompletedProcess[str]:
    """Run ``commands`` in a process that may not write in the run directory."""
    files = [live.run_dir, *live.run_dir.rglob("*")]
    modes = {path: path.stat().st_mode for path in files if not path.is_symlink()}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    words = [text.format(folder=live.run_dir.parent) for text in commands]
    command = [sys.executable, "-c", PROGRAM, str(live.run_dir), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    finally:
        for path, mode in modes.items():
            if path.exists():
                path.chmod(mode)


def test_what_only_reads_works_while_the_pool_is_up_and_when_it_is_down(live: Pool) -> None:
    done = pilot(live, *READERS, "down")
    assert (done.returncode, done.stderr) == (0, "")
    assert live.ended() == 0
    done = pilot(live, *READERS)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unreadable_lock_is_reported_with_advice(live: Pool) -> None:
    (live.run_dir / "coordinator.lock").chmod(0)
    done = pilot(live, "status")
    assert done.returncode == 2
    assert "coordinator.lock: Permission denied; it belongs to user 0, who can chmod u+rX " in done.stderr
