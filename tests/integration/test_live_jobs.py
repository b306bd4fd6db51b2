"""A coordinator that keeps its own pilots: real agents, submitted through Parsl as local processes."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pilot.provisioning.keeper import pool_name
from tests.integration.live_pool import Pool, pool, until


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Pool]:
    with pool(tmp_path, "--pilots", "2") as made:
        yield made


def pids(live: Pool) -> dict[str, int]:
    """Node → its agent's process."""
    return {row.node: row.pid for row in live.client.pilots().pilots}


@pytest.mark.slow
def test_pilots_are_kept_replaced_and_sent_home(live: Pool) -> None:
    first = until(lambda: len(found := pids(live)) == 2 and found)
    assert all(row.job for row in live.client.pilots().pilots)
    killed = min(first)
    os.kill(first[killed], signal.SIGKILL)
    second = until(lambda: len(found := pids(live)) == 2 and killed not in found and found)
    assert len(second.keys() & first.keys()) == 1
    told = min(second)
    os.kill(second[told], signal.SIGTERM)
    until(lambda: len(found := pids(live)) == 2 and told not in found)
    assert live.client.status().keeper.wanted_nodes == 2
    assert live.down() == 0
    jobs = [p for p in psutil.process_iter() if _is_ours(p, f"{pool_name(live.run_dir)}.")]
    assert jobs == []
    ends = re.findall(r"job \d+ ended: (.*)", (live.run_dir / "coordinator.log").read_text())
    assert ends[-2:] == ["completed (exit 0)"] * 2, "they left by themselves"


def _is_ours(process: psutil.Process, prefix: str) -> bool:
    try:
        return process.environ().get("JOBNAME", "").startswith(prefix)
    except psutil.Error:
        return False


def test_without_trainers_none_are_wanted_by_default(tmp_path: Path) -> None:
    made = Pool(tmp_path)
    made.options = []
    try:
        made.up()
        assert made.client.status().keeper.wanted_nodes == 0
        assert made.down() == 0
    finally:
        made.kill()
