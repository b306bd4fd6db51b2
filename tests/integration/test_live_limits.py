"""A login node's limits: if no process can be started, or the disk is slow, the coordinator carries on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from pilot.core.errors import UserError
from pilot.protocol import wire
from tests.integration.live_pool import DEADLINE_S, Peer, Pool, until

NOBODY = 65534
CAPABILITIES = "-all,+dac_override,+dac_read_search"
"""Root is exempt from the limit; another user may not even be able to read this Python, which these two fix."""


def unprivileged() -> list[str]:
    """How to run a command as a user to whom the limit applies."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root is exempt from RLIMIT_NPROC, and there is no setpriv to be somebody else")
    who = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    return ["setpriv", *who, "--inh-caps", CAPABILITIES, "--ambient-caps", CAPABILITIES, "--"]


class OtherUsersPool(Pool):
    """A pool whose connection file is made ours: nobody reads another user's."""

    def _answers(self) -> bool:
        if self.file.exists():
            os.chown(self.file, os.geteuid(), os.getegid())
        return super()._answers()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Pool]:
    made = OtherUsersPool(tmp_path)
    threads = ["--unset=OMP_NUM_THREADS", "--unset=OPENBLAS_NUM_THREADS"]  # make sets one: as a user has them
    made.command = ["env", *threads, *unprivileged(), *made.command]
    try:
        made.up()
        yield made
    finally:
        made.kill()


SLOW_DISK = """
import os, pathlib, sys, time
sync, here = os.fsync, pathlib.Path({folder!r})
def slow(descriptor):
    if "spec.json" in os.readlink(f"/proc/self/fd/{{descriptor}}"):
        (here / "syncs").touch()
        while not (here / "go").exists():
            time.sleep(0.01)
    sync(descriptor)
os.fsync = slow
from pilot.service.daemon import main
sys.exit(main())
"""


def limit_tasks(live: Pool, tasks: int) -> None:
    """Limit the number of its user's processes and threads. Only the same user may set it."""
    assert live.process is not None
    command = [*unprivileged(), "prlimit", "--pid", str(live.process.pid), f"--nproc={tasks}:"]
    subprocess.run(command, check=True)


def solver(live: Pool) -> psutil.Process | None:
    assert live.process is not None
    children = psutil.Process(live.process.pid).children()
    return next(
        (child for child in children if "pilot.service.planning.solver_child" in " ".join(child.cmdline())), None
    )


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


def test_a_submission_on_a_slow_disk_holds_up_nobody(tmp_path: Path) -> None:
    live = Pool(tmp_path)
    live.command = [sys.executable, "-c", SLOW_DISK.format(folder=str(tmp_path)), *live.command[3:]]
    try:
        live.up()
        peer = Peer(live.file, "p0", "n0").welcomed()
        with ThreadPoolExecutor() as threads:
            submission = threads.submit(live.submit, name="a")
            until((tmp_path / "syncs").exists)
            assert live.client.status().trainers == []
            with pytest.raises(UserError, match="a trainer named a already exists"):
                live.submit(name="a")
            assert not submission.done()
            (tmp_path / "go").touch()
            assert submission.result(DEADLINE_S) == "a"
        assert peer.hears(wire.StartWorker).trainer == "a"
    finally:
        live.kill()
