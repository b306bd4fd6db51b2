"""Fixtures for attacks by peers and by another user."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.agent_lab import Agents, Coordinator, lab
from tests.integration.live_pool import Pool, pool
from tests.security.second_user import SecondUser


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool for the tests of one module."""
    with pool(tmp_path_factory.mktemp("live")) as made:
        yield made


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[tuple[Coordinator, Agents]]:
    """A coordinator that a test plays, for real agents."""
    yield from lab(tmp_path)


@pytest.fixture
def attacker() -> SecondUser:
    """Another user. Without root the test is skipped; with ``PILOT_NEED_SECOND_USER`` set, as in CI, it fails."""
    if os.geteuid() != 0:
        reason = "becoming another user needs root"
        if os.environ.get("PILOT_NEED_SECOND_USER"):
            pytest.fail(reason)
        pytest.skip(reason)
    return SecondUser()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder to which every user may write, and in which everybody may rename and remove: no sticky bit."""
    folder = Path(tempfile.mkdtemp(prefix="pilot-open-"))
    try:
        folder.chmod(0o777)
        yield folder
    finally:
        shutil.rmtree(folder)
