"""A lab, and a pool of real pilots on it, per test; each leaves nothing behind."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilot.cli.demo.leftovers import left_behind, unowned
from tests.slurm.lab import Lab, LabConfig, missing, missing_accounting, new_folder, running_lab, wait_for
from tests.slurm.pools import SlurmPool


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests in this folder are marked; without Slurm or root they are skipped, with the reason."""
    reason = missing()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slurm)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def lab(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """The test's own lab; ``indirect`` parameters are its :class:`LabConfig`."""
    folder = new_folder()
    try:
        with running_lab(folder, getattr(request, "param", LabConfig())) as running:
            monkeypatch.setenv("SLURM_CONF", str(running.conf))
            yield running
            wait_for(lambda: not running.queued(), "no job in the queue", limit_s=20)
            wait_for(lambda: not running.job_processes(), "no process of a job", limit_s=20)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def accounting() -> None:
    """For tests that need a lab with accounts."""
    if reason := missing_accounting():
        pytest.skip(reason)


@pytest.fixture
def pool(lab: Lab, tmp_path: Path) -> Iterator[SlurmPool]:
    """A pool that is not up yet."""
    before = unowned()
    pool = SlurmPool(tmp_path, lab=lab)
    try:
        yield pool
    finally:
        pool.end()
    assert left_behind(pool.run_dir, before) == []
