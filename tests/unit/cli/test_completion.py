"""Completion, as a real bash asks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")

ASK = """
eval "$(pilot completion bash)"
COMP_WORDS=(pilot {words}) COMP_CWORD={count}
_pilot_completion pilot
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(*words: str, folder: Path) -> list[str]:
    """What bash would offer for the last of ``words``."""
    script = ASK.format(words=" ".join(word or "''" for word in words), count=len(words))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder)}
    environment = {key: value for key, value in environment.items() if not key.startswith(("XDG", "PILOT"))}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.split()


def test_commands_options_and_sites(tmp_path: Path) -> None:
    assert {"status", "submit"} <= set(completed("s", folder=tmp_path))
    assert "--run-dir" in completed("status", "--", folder=tmp_path)
    assert "polaris" in completed("up", "--site", "pol", folder=tmp_path)


def test_trainers_and_studies_where_no_pool_is_up(tmp_path: Path) -> None:
    assert completed("explain", "v", folder=tmp_path) == []
    assert completed("study", "best", "s", folder=tmp_path) == []
