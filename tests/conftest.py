"""Fixtures shared by several folders."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from pilot.agent import workdir
from pilot.cli.demo.leftovers import left_behind, unowned
from tests.pools import Pool

# Started in a shell's background or under nohup, pytest would ignore these signals, and so would its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The same examples every day: a commit that passed does not fail later.
settings.register_profile("everyday", derandomize=True)
if settings.get_current_profile_name() == "default":
    settings.load_profile("everyday")

MOST_DESCRIPTORS = 200
"""Descriptors that pytest itself may hold at the end; its plugins and libraries need a few dozen."""


@pytest.fixture(scope="session", autouse=True)
def descriptors_are_closed() -> Iterator[None]:
    """One file or socket leaked per test would add up to a thousand, where some calls fail and others hang."""
    yield
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) < MOST_DESCRIPTORS


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """A pool that is not up yet; at the end nothing of it may be left."""
    before = unowned()
    pool = Pool(tmp_path)
    try:
        yield pool
    finally:
        pool.end()
        workdir.sweep()
    assert left_behind(pool.run_dir, before) == []
