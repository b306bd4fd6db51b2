"""The screens of docs/start/first-day.md: its commands, typed in their order on a lab, print what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pilot.client.pools import pool_at
from tests.slurm.lab import Lab, LabConfig, wait_for
from tests.unit.documented import ROOT, Screen, screens

LIMIT_S = 180.0
LOOKS = ("pilot status", "pilot events", "pilot logs", "squeue")
"""Commands that are typed again until they show what the page shows."""
ANSWERS = (
    " --scheduler slurm --partition preempt --walltime 01:00:00 --notice-signal USR1 --grace-s 20 --launcher srun"
    " --interface lo --bind-address 127.0.0.1 --poll-s 2 --command-timeout-s 10"
)
"""What a user of the lab would answer to the questions of ``pilot sites new``, and shorter times."""
LINE = "    print(f"


@dataclass
class User:
    """A user of the lab with an empty home, in a folder with the example as ``train.py``."""

    lab: Lab
    home: Path

    @property
    def run_dir(self) -> Path:
        return self.home / ".local" / "state" / "pilot" / "mine"

    def type(self, line: str) -> str:
        """What a command prints; the page's job and nodes are replaced by those that the user sees."""
        own = {name: value for name, value in self.lab.environment.items() if not name.startswith(("XDG_", "PILOT_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
        done = subprocess.run(
            self._as_here(line),
            shell=True,
            cwd=self.home,
            env={**own, "HOME": str(self.home), "PATH": path, "COLUMNS": "96"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}"
        return done.stdout

    def _as_here(self, line: str) -> str:
        if line.startswith("pilot sites new"):
            return line + ANSWERS
        if line.startswith("pilot submit"):
            return line.replace("submit", "submit --fixed-curve --curve curve.txt")
        if line.startswith("scancel"):
            return f"scancel {pool_at(self.run_dir).pilots().pilots[0].job}"
        if line.startswith("sbatch"):
            hosts = ",".join(sorted(node.host for node in pool_at(self.run_dir).status().pool))
            return re.sub(r"-w \S+", f"-w {hosts}", line)
        return line

    def sees(self, screen: Screen) -> None:
        """Type the screen's command, and wait until it prints the shown lines, in their order."""
        begun_s = time.monotonic()
        while missing := missing_in(printed := self.type(screen.command), screen.shown):
            again = screen.command.startswith(LOOKS) and time.monotonic() - begun_s < LIMIT_S
            assert again, f"{screen.command} does not print {missing!r}, but\n{printed}"
            time.sleep(0.3)


def missing_in(printed: str, shown: list[str]) -> str:
    """The first line of ``shown`` that is not in ``printed`` after the one before it; "" if all are."""
    lines = iter(printed.splitlines())
    for one in shown:
        pattern = re.compile(_pattern(one))
        if not any(pattern.search(line) for line in lines):
            return one
    return ""


def _pattern(line: str) -> str:
    """Words with a digit or a path, and a user's name, differ from place to place; "…" stands for anything."""
    words = [r"\S+" if re.search(r"[\d/]", word) or word == "me" else re.escape(word) for word in line.split()]
    return r"\s+".join(words).replace("…", ".*")


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> Iterator[User]:
    """The pool is down in the end. The script also ends with the epoch in which a file ``enough`` is there. By its
    curve two nodes are faster than one, however busy this machine is.
    """
    text = (ROOT / "examples" / "first.py").read_text()
    enough = f"    if __import__('os').path.exists({str(tmp_path / 'enough')!r}):\n        session.stop()\n"
    (tmp_path / "curve.txt").write_text("1 100\n2 190\n")
    (tmp_path / "train.py").write_text(text.replace(LINE, enough + LINE))
    user = User(lab, tmp_path)
    try:
        yield user
    finally:
        if (user.run_dir / "connection.json").exists():
            user.type("pilot down")


@pytest.mark.parametrize("lab", [LabConfig(nodes=2)], indirect=True)  # with more, preempted pilots get others at once
def test_the_first_day_shows_what_its_page_says(user: User) -> None:
    for screen in screens("start/first-day.md"):
        if screen.command == "pilot wait first":
            (user.home / "enough").touch()
        user.sees(screen)
    assert user.type("squeue -h") == ""
    wait_for(lambda: not user.lab.job_processes(), "no process of a job", limit_s=20)
