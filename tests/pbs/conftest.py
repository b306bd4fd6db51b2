"""One lab per test file; each test starts with an empty queue and a server's default settings."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pbs.lab import Lab, missing, running_lab
from tests.pbs.pools import PbsPool, own_folder
from tests.slurm.lab import wait_for


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests in this folder are marked; without an OpenPBS or root they are skipped, with the reason."""
    reason = missing()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.pbs)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def server() -> Iterator[Lab]:
    """A lab for this file's tests."""
    folder = Path(tempfile.mkdtemp(prefix="pbs"))
    try:
        with running_lab(folder) as lab:
            yield lab
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def pool(lab: Lab) -> Iterator[PbsPool]:
    """A pool that is not up yet."""
    pool = PbsPool(own_folder(lab), lab=lab)
    try:
        yield pool
    finally:
        pool.end()
    wait_for(lambda: not lab.job_processes(), "no process of a job", limit_s=20)


@pytest.fixture
def lab(server: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """The lab, for one test; PBS's commands are on the PATH."""
    monkeypatch.setenv("PATH", f"{server.bin}:{os.environ['PATH']}")
    yield server
    server.empty()
