"""A login node's limits: where no process and no thread can be started, the coordinator goes on with what it has."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pilot.io import wire
from tests.integration.live_pool import Peer, Pool, until

NOBODY = 65534
CAPABILITIES = "-all,+dac_override,+dac_read_search"
"""Root is exempt from the limit; somebody else may not even read this Python, which these two make good."""


def unprivileged() -> list[str]:
    """How to run a command as a user whom the limit holds."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root is exempt from RLIMIT_NPROC, and there is no setpriv to be somebody else")
    who = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    return ["setpriv", *who, "--inh-caps", CAPABILITIES, "--ambient-caps", CAPABILITIES, "--"]


class OtherUsersPool(Pool):
    """One whose connection file is made ours: nobody reads another user's."""

    def _answers(self) -> bool:
        if self.file.exists():
            os.chown(self.file, os.geteuid(), os.getegid())
        return super()._answers()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Pool]:
    made = OtherUsersPool(tmp_path)
    made.command = [*unprivileged(), *made.command]
    try:
        made.up()
        yield made
    finally:
        made.kill()


def limit_tasks(live: Pool, tasks: int) -> None:
    """So many processes and threads may its user have. Only the same user may say so."""
    assert live.process is not None
    command = [*unprivileged(), "prlimit", "--pid", str(live.process.pid), f"--nproc={tasks}:"]
    subprocess.run(command, check=True)


def solver(live: Pool) -> psutil.Process | None:
    assert live.process is not None
    children = psutil.Process(live.process.pid).children()
    return next((child for child in children if "pilot.service.solver_child" in " ".join(child.cmdline())), None)


def test_where_fork_is_refused_plans_still_come_and_nothing_ends(live: Pool) -> None:
    child = until(lambda: solver(live))
    limit_tasks(live, 1)
    child.kill()
    child.wait(10)
    peers = [Peer(live.file, "p0", "n0").welcomed()]
    trainer = live.submit(name="a", max_nodes=2)
    assert peers[0].hears(wire.StartWorker).trainer == trainer
    until(lambda: any("solver process could not be started" in text for text in live.client.status().remarks))
    until(lambda: live.client.status().solves.planner == "dp")
    limit_tasks(live, 2000)

    def back() -> psutil.Process | None:
        live.client.nodes()
        number = len(peers)
        peers.append(Peer(live.file, f"p{number}", f"n{number}").welcomed())
        return solver(live)

    until(back)
    assert live.process is not None
    assert live.process.poll() is None
