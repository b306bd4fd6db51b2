"""A pool with two types of nodes, pilots with CPU quotas, trains two models through kills."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pilot.cli.top.view import about, headline
from pilot.host import proc
from pilot.protocol.pool_client import PoolClient
from pilot.protocol.pool_status import PoolStatus
from tests.e2e import mixed_site
from tests.e2e.proof import EPOCH_SAMPLES, proved
from tests.pools import Pool

SITE = Path(mixed_site.__file__)
LIMIT_S = 400.0
"""Importing torch takes a node with a fifth of a core half a minute."""

SCRIPT = f"""
import time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
import pilot.train

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
session = pilot.train.session(model, optimizer)
loader = session.loader(TensorDataset(torch.randn({EPOCH_SAMPLES}, 4)), global_batch_size=96, shares="free")
for epoch in session.epochs(100_000):
    for (x,) in loader:
        until_s = time.process_time() + 0.0005 * len(x)
        while time.process_time() < until_s:
            pass
        optimizer.zero_grad()
        model(x).square().mean().backward()
        session.step()
    if Path("enough").exists():
        session.stop()
"""


def groups() -> list[Path]:
    """The control groups of the site's pilots, the lowest first."""
    roots = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
    found = [group for root in roots for group in (root / mixed_site.FOLDER).glob("**/")]
    return sorted(found, key=lambda group: -len(group.parts))


@pytest.fixture
def quotas() -> Iterator[None]:
    """Skip where the site's prologue cannot work; remove its groups."""
    parent = next((p for p in map(Path, ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup")) if p.is_dir()), None)
    if parent is None or os.geteuid() != 0 or not os.access(parent, os.W_OK):
        pytest.skip("no control group with a CPU quota can be made here")
    yield
    for group in groups():
        with suppress(FileNotFoundError):
            group.rmdir()


def of(status: PoolStatus, name: str, kind: str) -> int:
    """How many nodes of a type train ``name``."""
    return status.trainer(name).nodes_by_type.get(kind, 0)


@pytest.mark.usefixtures("quotas")
def test_two_types_of_nodes_train_two_models_through_kills(pool: Pool) -> None:
    script = pool.folder / "loop.py"
    script.write_text(SCRIPT)
    refused = pool.pilot("up", "--site", SITE, "--pilots", "4", check=False)
    assert (refused.returncode, "--pilots fast:N --pilots slow:N" in refused.stderr) == (2, True)
    pool.pilot("up", "--site", SITE, "--pilots", "fast:2", "--pilots", "slow:2")
    large = pool.submit(script, options=("--name", "large", "--min-nodes", "3", *pool.gains()))
    small = pool.submit(script, options=("--name", "small", "--max-nodes", "1", *pool.gains()))

    def mixed(status: PoolStatus) -> bool:
        shares = status.trainer(large).shares.values()
        return bool(status.trainer(small).nodes) and bool(shares) and max(shares) > 1.3 * min(shares)

    status = pool.until("both train, one with shares that follow its nodes' speeds", mixed, LIMIT_S)
    assert of(status, large, "fast") >= 1
    assert of(status, large, "slow") >= 1
    text = pool.pilot("status").stdout
    assert "4 nodes (4 training), by type: 2 fast, 2 slow" in text
    assert "fast jobs: 2 running" in text
    assert "shares of a step: " in text
    assert "by type: 2 fast, 2 slow" in headline(status).plain
    assert "shares of a step: " in about(status.trainer(large)).plain
    assert "relative to" in pool.pilot("explain", large).stdout
    assert "fast" in pool.pilot("nodes").stdout

    step = status.trainer(large).step
    pilots = PoolClient(pool.run_dir / "connection.json", 60.0).pilots().pilots
    victim = next(pilot for pilot in pilots if pilot.node in status.trainer(large).nodes)
    assert victim.pid is not None
    proc.kill(proc.tree(victim.pid))
    coordinator = pool.coordinator()
    assert coordinator is not None
    os.kill(coordinator, signal.SIGKILL)
    pool.back_from(coordinator)
    pool.until(
        "the killed pilot is replaced, and both go on",
        lambda s: len(s.trainer(large).nodes) >= 3 and s.trainer(large).step > step and len(s.pool) == 4,
        LIMIT_S,
    )
    pool.until("the scheduler shows them", lambda s: [keeper.running for keeper in s.keepers] == [2, 2], LIMIT_S)
    (pool.folder / "enough").touch()
    pool.pilot("wait", large, small, limit_s=LIMIT_S)
    assert proved(pool, large) >= 1
    assert proved(pool, small) >= 1
    page = pool.folder / "page.html"
    pool.pilot("report", "--output", page)
    assert "(fast)</div>" in page.read_text()
    pool.pilot("down")
    left = [int(pid) for group in groups() for pid in (group / "cgroup.procs").read_text().split()]
    assert not [pid for pid in left if psutil.pid_exists(pid)]
