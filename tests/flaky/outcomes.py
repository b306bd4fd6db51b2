"""How each test ended, recorded as it ends: ``pytest -p tests.flaky.outcomes --outcomes FILE``."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

RUNNING = ".running"
"""Suffix of a file that marks a run whose outcomes are incomplete."""


class Outcome(msgspec.Struct, frozen=True):
    """``failure``: pytest's report of it; empty if it passed or was skipped."""

    test: str
    took_s: float
    failure: str = ""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that names the file."""
    parser.addoption("--outcomes", type=Path, required=True, help="append how each test ended to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Only in the process that collects all reports: with xdist, the one that the workers report to."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(config.getoption("--outcomes")))


class _Writer:
    def __init__(self, path: Path) -> None:
        self._path = path = path.absolute()  # a test may leave the process in another directory
        path.parent.mkdir(parents=True, exist_ok=True)
        # Runs in other namespaces may have the same process id.
        self._running = path.with_suffix(f".{uuid4().hex}{RUNNING}")
        self._running.touch()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test is recorded once, and again if its teardown fails."""
        if report.failed or report.when == "call":
            text = report.longreprtext if report.failed else ""
            outcome = Outcome(report.nodeid, report.duration, text.encode(errors="replace").decode())
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(outcome) + b"\n")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """The mark stays if an error of pytest's own ended the run: some tests have then not run."""
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self._running.unlink()


def read(path: Path) -> list[Outcome]:
    """The outcomes in a file; none if no test ran."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Outcome) for line in lines]


def failures(path: Path) -> dict[str, str]:
    """Test → its first failure."""
    found = dict[str, str]()
    for outcome in read(path):
        if outcome.failure:
            found.setdefault(outcome.test, outcome.failure)
    return found
