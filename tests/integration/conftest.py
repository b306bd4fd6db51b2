"""Fixtures of the tests with real agents, or with a real coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import agent_lab, live_pool


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[agent_lab.Lab]:
    """A coordinator that the test plays, and real agents."""
    yield from agent_lab.lab(tmp_path)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[live_pool.Pool]:
    """A real coordinator, whose agents the test plays."""
    with live_pool.pool(tmp_path) as made:
        yield made
