"""What CI repeats is reported, with its first failure."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.flaky.outcomes import read
from tests.flaky.repeated import AGAIN, to_repeat, told

TESTS = """
from pathlib import Path

def test_only_the_second_time():
    been = Path(__file__).with_suffix(".been")
    if not been.exists():
        been.touch()
        raise AssertionError("no answer yet")

def test_never():
    raise AssertionError("never")

def test_always():
    pass
"""

BROKEN = """
def pytest_runtest_logreport(report):
    if report.failed and "odd" not in report.nodeid:
        raise RuntimeError("no disk")
"""


def test_what_failed_at_first_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_three.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    failed = ["test_three.py::test_only_the_second_time", "test_three.py::test_never"]
    for name, options in (("test.jsonl", ("-n", "2")), (f"{AGAIN}test.jsonl", ("--last-failed",))):
        recorded = ("-p", "tests.flaky.outcomes", "--outcomes", tmp_path / name)
        command = [sys.executable, "-m", "pytest", "-q", "--rootdir", tmp_path, *recorded, *options, tmp_path]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 1, done.stdout
        assert sorted(to_repeat(tmp_path, "test")) == sorted(failed)
        if name == "test.jsonl":
            assert "failed, and was not repeated: test_three.py::test_never" in told(tmp_path)
    text = told(tmp_path)
    assert "FLAKY: failed at first, then passed: test_three.py::test_only_the_second_time" in text
    assert "failed again: test_three.py::test_never" in text
    assert "AssertionError: no answer yet" in text
    assert "test_always" not in text.split("===")[-1]


def test_a_run_that_an_error_of_pytests_own_ends_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / "test_three.py").write_text("def test_odd():\n    raise AssertionError('\\udcff')\n" + TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(BROKEN)
    recorded = ("-p", "tests.flaky.outcomes", "--outcomes", tmp_path / "test.jsonl")
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", tmp_path, *recorded, tmp_path]
    assert subprocess.run(command, check=False, capture_output=True).returncode == pytest.ExitCode.INTERNAL_ERROR
    assert read(tmp_path / "test.jsonl")[0].test == "test_three.py::test_odd"
    with pytest.raises(SystemExit, match="did not come to the end"):
        to_repeat(tmp_path, "test")


def test_where_nothing_failed_nothing_is_said(tmp_path: Path) -> None:
    assert told(tmp_path) == ""
