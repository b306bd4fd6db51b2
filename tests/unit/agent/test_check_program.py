"""Which verdicts of checks are kept, and how long they hold. tests/e2e/test_checked.py has real checks."""

from __future__ import annotations

import hashlib
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilot.agent import check_program
from pilot.agent.check_program import Found, checked
from pilot.submission.script_code import collect
from pilot.submission.submission import CheckJob, LaunchSpec


class Checks:
    """In place of ``pilot check``: says that the script loaded itself and its module, and counts how often it ran."""

    def __init__(self, folder: Path) -> None:
        self.script, self.module = folder / "train.py", folder / "data.txt.py"
        self.script.write_text("import data\n")
        self.module.write_text("WIDTH = 3\n")
        self.job = self.job_of(arguments=["--lr", "1"])
        self.result = "passed"
        self.runs = 0

    def job_of(self, **changes: Any) -> CheckJob:
        where = str(self.script), "", [], str(self.script.parent), sys.executable, {}
        launch = msgspec.structs.replace(LaunchSpec(*where), **changes)
        return CheckJob(launch, 60.0, str(self.script.parent / "checks"))

    def run(self, _job: CheckJob, copied: Mapping[str, bytes]) -> Found:
        self.runs += 1
        files = [str(self.script), str(self.module)]
        return Found(self.result, "as it says", check_program._versions(files, copied))


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checks:
    checks = Checks(tmp_path)
    monkeypatch.setattr(check_program, "_run", checks.run)
    return checks


@pytest.mark.parametrize(("result", "runs"), [("passed", 1), ("differs", 1), ("unchecked", 2)])
def test_a_verdict_is_kept_for_us_alone(checks: Checks, result: str, runs: int) -> None:
    checks.result = result
    assert checked(checks.job) == checked(checks.job)
    assert checks.runs == runs
    kept = list(Path(checks.job.kept_in).glob("*"))
    assert [stat.S_IMODE(file.stat().st_mode) for file in kept] == [0o600] * (2 - runs)


def test_it_does_not_hold_for_other_arguments_or_once_a_file_changes(checks: Checks) -> None:
    checked(checks.job)
    checked(checks.job_of(arguments=["--lr", "2"]))
    assert checks.runs == 2
    checks.module.write_text("WIDTH = 4\n")
    checked(checks.job)
    assert checks.runs == 3
    checks.module.write_text("WIDTH = 3\n")
    checked(checks.job)
    assert checks.runs == 4, "only the newest verdict is kept"
    checks.module.unlink()
    checked(checks.job)
    assert checks.runs == 5


def test_it_holds_for_the_code_as_submitted_whatever_the_files_have_become(checks: Checks) -> None:
    code = collect(checks.script, checks.script.read_bytes()).packed()
    archive = checks.script.with_name("code.zip")
    archive.write_bytes(code)
    job = checks.job_of(archive=str(archive), code_sha256=hashlib.sha256(code).hexdigest())
    checked(job)
    checks.module.write_text("WIDTH = 4\n")
    checked(job)
    assert checks.runs == 1
    checked(checks.job)
    assert checks.runs == 2, "this one is run in place"


def test_what_others_left_in_its_place_is_no_verdict(checks: Checks) -> None:
    checked(checks.job)
    (kept,) = Path(checks.job.kept_in).iterdir()
    for content in (b"", b"[]", b'{"result": "passed"}', b"\xff"):
        kept.write_bytes(content)
        assert checked(checks.job).text == "as it says"
    assert checks.runs == 5
