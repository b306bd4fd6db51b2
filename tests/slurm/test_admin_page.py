"""What docs/admin/bring-up.md tells an admin to type works on a real Slurm, up to the preemption. A newcomer's day
(test_first_day) types much of the same every day.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.slurm.lab import Lab
from tests.slurm.pools import SlurmPool
from tests.unit.documented import ROOT, shell_lines

HERE = {"hsn0": "lo", "24:00:00": "01:00:00", "examples/digits_cnn.py": str(ROOT / "examples" / "digits_cnn.py")}
"""What differs between the page's machine and the lab."""


def _typed() -> list[list[str]]:
    """The words of each line of the page, up to the job that preempts the pilots."""
    lines = [shlex.split(line, comments=True) for page, line in shell_lines() if page == "admin/bring-up.md"]
    last = next(number for number, words in enumerate(lines) if words[0] == "sbatch")
    return [[HERE.get(word, word) for word in words] for words in lines[: last + 1]]


@pytest.mark.long
def test_an_admin_brings_up_a_site_as_the_page_says(
    lab: Lab, pool: SlurmPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    *commands, (sbatch, *preempting) = _typed()
    said = {" ".join(words[:4]): pool.pilot(*words[1:]).stdout for words in commands}
    assert "2 started within" in said["pilot doctor --site mine"]
    pool.until("digits trains", lambda status: status.trainer("digits").step > 10)
    assert sbatch == "sbatch"
    lab.sbatch(*preempting)
    pool.until_ended("preempted", 2)
    assert pool.trainer("digits").lost_steps == 0
    events = pool.pilot("events").stdout
    assert "got notice (signal SIGUSR1)" in events
    assert "checkpoint at step" in events
