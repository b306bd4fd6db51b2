"""Several training processes of one worker, forked from a real fork server: they end together, and are reported
once.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from pilot.agent import workdir as workdirs
from pilot.agent.events_effects import WorkerEnded, WorkerMessage
from pilot.agent.workers import Workers
from pilot.core.commands import StopWorker
from pilot.host import proc
from pilot.protocol import wire
from pilot.submission.submission import GIVEN_MAX, LaunchSpec, check_given

LIMIT_S = 60.0
RANK = "import os, signal, sys, time\nrank, size = (int(os.environ['PILOT_LOCAL_' + w]) for w in ('RANK', 'SIZE'))\n"
CONTROL = "control = int(os.environ['PILOT_CONTROL_FD'])\nwhile not os.read(control, 1 << 16): pass\n"


class Bench:
    """Workers and their messages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = workdirs.create(Path("/tmp"))
        self.emitted: list[WorkerMessage | WorkerEnded] = []
        self.workers = Workers(self.home, self.emitted.append, "127.0.0.1", ["lo", "127.0.0.1"], "n")

    def launch(
        self,
        script: str,
        ranks: int = 3,
        environment: dict[str, str] | None = None,
        arguments: Sequence[str] = (),
        between_nodes: str = "mpi",
        ddp: bool = False,
    ) -> None:
        path = self.folder / "train.py"
        path.write_text(RANK + script)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        directory = str(self.folder / "t")
        here = str(self.folder)
        given = environment or {}
        launch = LaunchSpec("train.py", digest, [*arguments], here, sys.executable, given, ddp=ddp)
        order = wire.StartWorker("t", "", directory, launch, 60.0, 2, ranks=ranks, between_nodes=between_nodes)
        self.workers.launch(order)

    def log(self, rank: int) -> str:
        path = self.folder / "t" / "logs" / f"n.{rank}.log"
        return path.read_text() if path.exists() else ""

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, f"not within {LIMIT_S} s: {what}"
            await asyncio.sleep(0.01)

    async def end(self) -> WorkerEnded:
        """The one report of the worker's end; nothing of it is left."""
        await self.until(lambda: any(isinstance(one, WorkerEnded) for one in self.emitted), "the worker's end")
        (end,) = (one for one in self.emitted if isinstance(one, WorkerEnded))
        assert list(self.workers.pids()) == []
        assert self.workers.sockets_of("t") == []
        return end


@asynccontextmanager
async def bench(folder: Path) -> AsyncIterator[Bench]:
    made = Bench(folder)
    try:
        yield made
    finally:
        made.workers.close()
        os.close(made.home.lock)
        assert workdirs.erase(made.home.path) == []
        assert proc.marked(made.home.mark) == []


def test_one_that_raises_ends_all_and_its_last_words_are_reported(tmp_path: Path) -> None:
    async def play() -> None:
        async with bench(tmp_path) as it:
            it.launch("if rank == 1: raise ValueError(f'rank {rank} of {size}')\nsignal.pause()\n")
            end = await it.end()
            assert end.status == 1
            assert "ValueError: rank 1 of 3" in end.tail
            said = wire.ScriptRaised(
                "t", 1, "ValueError: rank 1 of 3", f"{tmp_path}/train.py, line 3: builtins.ValueError"
            )
            assert it.emitted == [WorkerMessage("t", said), end]
            assert end.log.endswith("n.1.log")

    asyncio.run(play())


def test_each_gets_as_much_as_may_be_given_to_it(tmp_path: Path) -> None:
    async def play() -> None:
        async with bench(tmp_path) as it:
            arguments, environment = ["\x01" * 60_000, *["x"] * 5_000], {"DATA": "y" * (GIVEN_MAX - 70_010)}
            check_given(LaunchSpec("train.py", "", arguments, "/", "", environment))
            it.launch(
                "sys.exit(f'{len(sys.argv[1])} {len(sys.argv)} {len(os.environ[\"DATA\"])}')", 3, environment, arguments
            )
            assert f"60000 5002 {len(environment['DATA'])}" in (await it.end()).tail

    asyncio.run(play())


@pytest.mark.parametrize(
    ("between", "of_nccl"), [("mpi", "- - - -"), ("gloo", "- - - -"), ("nccl", "0 0 30 =lo,127.0.0.1")]
)
def test_each_is_told_how_nodes_sum_and_torch_leaves_lost_peers_to_us(
    between: str, of_nccl: str, tmp_path: Path
) -> None:
    torchs = ["ASYNC_ERROR_HANDLING", "ENABLE_MONITORING", "NONBLOCKING_TIMEOUT"]
    given = dict.fromkeys([*(f"TORCH_NCCL_{name}" for name in torchs), "NCCL_SOCKET_IFNAME"], "-")
    names = ["PILOT_BETWEEN_NODES", "PILOT_INTERFACES", *given]

    async def play() -> None:
        async with bench(tmp_path) as it:
            it.launch(f"sys.exit(' '.join(os.environ[name] for name in {names}))", 1, given, between_nodes=between)
            assert f"{between} lo,127.0.0.1 {of_nccl}" in (await it.end()).tail

    asyncio.run(play())


def test_a_script_for_torchrun_keeps_the_time_limits_of_nccl(tmp_path: Path) -> None:
    async def play() -> None:
        async with bench(tmp_path) as it:
            it.launch("signal.pause()", 1, between_nodes="nccl", ddp=True)
            variables = it.workers._variables(it.workers._workers["t"], 0)
            assert variables["NCCL_SOCKET_IFNAME"] == "lo"
            assert not any(name.startswith("TORCH_NCCL") for name in variables)

    asyncio.run(play())


def test_processes_with_an_order_to_stop_end_by_themselves(tmp_path: Path) -> None:
    async def play() -> None:
        async with bench(tmp_path) as it:
            it.launch(f"print('here', flush=True)\n{CONTROL}if rank == 2: time.sleep(0.5)\nprint('done', flush=True)\n")
            await it.until(lambda: all("here" in it.log(rank) for rank in range(3)), "all have begun")
            it.workers.send("t", StopWorker("t", "", "finished"))
            assert (await it.end()).status == 0
            assert all("done" in it.log(rank) for rank in range(3))

    asyncio.run(play())


def test_one_that_is_killed_takes_the_others_with_it(tmp_path: Path) -> None:
    async def play() -> None:
        async with bench(tmp_path) as it:
            it.launch("print('here', flush=True)\nif rank == 0: os.kill(os.getpid(), signal.SIGKILL)\nsignal.pause()\n")
            assert (await it.end()).status == -9

    asyncio.run(play())


def test_what_it_started_in_a_session_of_its_own_ends_with_it(tmp_path: Path) -> None:
    """As a script's server or monitor does: the node's next trainer would share the node with it."""

    async def play() -> None:
        async with bench(tmp_path) as it:
            it.launch(
                "import subprocess\n"
                "apart = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
                "print('apart:', apart.pid, flush=True)\n",
                ranks=1,
            )
            assert (await it.end()).status == 0
            pid = int((tmp_path / "t" / "logs" / "n.log").read_text().split("apart:")[1])
            await it.until(lambda: pid not in [one.pid for one in proc.marked(it.home.mark)], "its end")

    asyncio.run(play())


def test_of_those_found_to_have_ended_the_killed_one_ended_the_others(tmp_path: Path) -> None:
    """A fork server that is busy reports several exits at once; so does one that is stopped for a while."""

    async def play() -> None:
        async with bench(tmp_path) as it:
            it.launch(
                "print('here', flush=True)\n"
                "while not os.path.exists('go'): time.sleep(0.01)\n"
                "if rank == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
                "raise ValueError('connection closed by rank 2')\n"
            )
            await it.until(lambda: all("here" in it.log(rank) for rank in range(3)), "all have begun")
            processes = [psutil.Process(pid) for _, pid in it.workers.pids()]
            (server,) = (psutil.Process(pid) for pid in it.workers.server_pids())
            server.suspend()
            (tmp_path / "go").touch()
            await it.until(lambda: all(one.status() == psutil.STATUS_ZOMBIE for one in processes), "their ends")
            server.resume()
            assert (await it.end()).status == -9

    asyncio.run(play())


def test_a_fork_server_that_ends_before_all_are_forked_ends_them_all(tmp_path: Path) -> None:
    async def play() -> None:
        async with bench(tmp_path) as it:
            it.launch("signal.pause()\n")
            it.workers.end_server(it.workers.server_pids()[0])
            assert "its fork server was killed" in (await it.end()).tail

    asyncio.run(play())


FREES = """
import sys, torch
def resident(): return 4096 * int(open("/proc/self/statm").read().split()[1])
before = resident()
made = torch.ones(6 << 20)
del made
sys.exit(f"kept {resident() - before}")
"""


def test_memory_that_a_step_frees_is_kept_for_the_next_one(tmp_path: Path) -> None:
    async def play() -> None:
        async with bench(tmp_path) as it:
            it.launch(FREES, ranks=1)
            end = await it.end()
            assert int(end.tail.rpartition("kept ")[2]) > 20e6

    asyncio.run(play())


def test_a_script_that_numbers_the_words_of_a_set_numbers_them_alike_on_all_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    said: list[str] = []

    async def play(node: Path) -> None:
        node.mkdir()
        async with bench(node) as it:
            it.launch("print(*{str(n) for n in range(100)}, flush=True)\nos._exit(0)\n", ranks=1)
            await it.end()
            said.append((node / "t" / "logs" / "n.log").read_text().strip().splitlines()[-1])

    for name in ("one", "other"):
        asyncio.run(play(tmp_path / name))
    assert said[0] == said[1]
