"""CI reports the tests that it repeated, with their first failure."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.flaky.outcomes import read
from tests.flaky.repeated import AGAIN, report, to_repeat

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


def run(folder: Path, name: str, *options: str, tests: str = TESTS) -> int:
    """Record the outcomes of ``tests`` in ``NAME.jsonl``; return pytest's exit status."""
    (folder / "test_three.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    recorded = ("-p", "tests.flaky.outcomes", "--outcomes", folder / f"{name}.jsonl")
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", folder, *recorded, *options, folder]
    return subprocess.run(command, check=False, capture_output=True).returncode


def test_the_first_failures_are_named(tmp_path: Path) -> None:
    assert report(tmp_path) == ""
    failed = ["test_three.py::test_only_the_second_time", "test_three.py::test_never"]
    assert run(tmp_path, "test", "-n", "2") == pytest.ExitCode.TESTS_FAILED
    assert sorted(to_repeat(tmp_path, "test")) == sorted(failed)
    assert "failed, and was not repeated: test_three.py::test_never" in report(tmp_path)
    assert run(tmp_path, f"{AGAIN}test", "--last-failed") == pytest.ExitCode.TESTS_FAILED
    text = report(tmp_path)
    assert "FLAKY: failed at first, then passed: test_three.py::test_only_the_second_time" in text
    assert "failed again: test_three.py::test_never" in text
    assert "AssertionError: no answer yet" in text
    assert "test_always" not in text.split("===")[-1]


def test_a_run_that_an_error_of_pytests_own_ends_is_incomplete(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(BROKEN)
    tests = "def test_odd():\n    raise AssertionError('\\udcff')\n" + TESTS
    assert run(tmp_path, "test", tests=tests) == pytest.ExitCode.INTERNAL_ERROR
    assert read(tmp_path / "test.jsonl")[0].test == "test_three.py::test_odd"
    with pytest.raises(SystemExit, match="did not come to the end"):
        to_repeat(tmp_path, "test")
