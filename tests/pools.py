"""Real pools on this machine: a daemon, agents that are local processes, real kills; each test leaves nothing
behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from pilot.cli.options import to_json
from pilot.client.pools import any_pool_at
from pilot.host import proc
from pilot.protocol.pool_status import PoolStatus, TrainerStatus
from pilot.protocol.requests import Submitted
from pilot.rundir.rundir import RunDir, owner

TRAIN = Path(__file__).parent / "e2e" / "train.py"
LIMIT_S = 180.0
"""Most things here take seconds, a wall time two minutes; the rest is margin for a busy machine."""

SITE = """
from pilot.site.site import Site

site = Site(
    name="e2e", scheduler="local", bind_address="{address}", interface={interface}, notice_signal="TERM", grace_s=5,
    poll_s=0.5, heartbeat_s=0.5, silent_s={silent_s}, orphan_s={orphan_s}, form_timeout_s={form_s},
    checkpoint_interval_s=0.5, checkpoints_kept=3, ranks_per_node={ranks},
    check="{check}", check_limit_s={check_limit_s},
)
"""


@dataclass
class Pool:
    """A test's pool: commands as a user types them, and agents as a user's own batch script runs them."""

    folder: Path
    silent_s: float = 4.0
    orphan_s: float = 60.0  # on a busy machine a killed coordinator has taken 18 s to be back
    form_s: float = 30.0
    address: str = "127.0.0.1"
    ranks: int = 1
    check: str = "off"  # a check of every script would double the time of most tests
    check_limit_s: int = 900
    agents: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def pilot(
        self, *arguments: str | Path, check: bool = True, limit_s: float = LIMIT_S
    ) -> subprocess.CompletedProcess[str]:
        """``pilot ARGUMENTS``; the exit status is checked unless ``check`` is off."""
        done = subprocess.run(
            self.command(*map(str, arguments)),
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment(),
            check=False,
            timeout=limit_s,
        )
        assert not check or done.returncode == 0, f"pilot {arguments}: {done.stderr}"
        return done

    def command(self, *arguments: str) -> list[str]:
        """The command line for ``pilot ARGUMENTS``."""
        return [sys.executable, "-P", "-m", "pilot", *arguments]

    def environment(self) -> dict[str, str]:
        own = {"XDG_STATE_HOME": str(self.folder / "state"), "PILOT_RUN_DIR": str(self.run_dir)}
        screen = ("COLUMNS", "LINES")  # readline sets them in processes that import it, such as those of pytest-xdist
        return {name: value for name, value in os.environ.items() if name not in screen} | own

    def up(self, *options: str) -> None:
        """Start the coordinator; no pilots are submitted unless ``options`` say so."""
        site = self.folder / "e2e.py"
        site.write_text(self.site())
        self.pilot("up", "--site", site, *(options or ("--pilots", "0")))

    def site(self) -> str:
        """The text of its site file."""
        interface = '"lo"' if self.address == "127.0.0.1" else None
        times = {"silent_s": self.silent_s, "orphan_s": self.orphan_s, "form_s": self.form_s}
        values = {"ranks": self.ranks, "address": self.address}
        return SITE.format(**times, **values, interface=interface, check=self.check, check_limit_s=self.check_limit_s)

    def agent(self, *within: str, connection: Path | None = None) -> subprocess.Popen[bytes]:
        """One more pilot, started by hand; ``within`` is a command prefix that runs it."""
        log = (self.folder / f"agent{len(self.agents)}.log").open("wb")
        file = connection or self.run_dir / "connection.json"
        command = [*within, sys.executable, "-P", "-m", "pilot", "agent", "--connection", str(file)]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=self.environment())
        self.agents.append(process)
        return process

    def submit(self, script: Path, *arguments: str, options: tuple[str, ...] = ()) -> str:
        answer = self.pilot("submit", "--json", *options, script, *arguments).stdout
        return msgspec.json.decode(answer, type=Submitted).trainer

    def submit_lasting(self, *arguments: str, step_s: float = 0.03, options: tuple[str, ...] = ()) -> str:
        """A trainer that trains until :meth:`finish`, however long that takes for which a test waits meanwhile."""
        until = ("--epochs", "100000", "--until", str(self.folder / "enough"))
        return self.submit(TRAIN, *until, "--step-s", str(step_s), *arguments, options=(*self.gains(), *options))

    def finish(self, name: str) -> TrainerStatus:
        """Let the trainer of :meth:`submit_lasting` come to the end of its epoch, and finish."""
        (self.folder / "enough").touch()
        assert self.pilot("wait", name).stdout == f"{name} finished\n"
        return self.trainer(name)

    def status(self) -> PoolStatus:
        """The answer of ``pilot status``, without a process for each time that a test asks."""
        return any_pool_at(self.run_dir).status()

    def trainer(self, name: str) -> TrainerStatus:
        return self.status().trainer(name)

    def until(self, what: str, reached: Callable[[PoolStatus], bool], limit_s: float = LIMIT_S) -> PoolStatus:
        """Wait until the status satisfies this."""
        deadline = time.monotonic() + limit_s
        while True:
            status = self.status()
            if reached(status):
                return status
            log = (self.run_dir / "coordinator.log").read_text()
            assert time.monotonic() < deadline, f"not within {limit_s} s: {what}\n{to_json(status)}\n{log}"
            time.sleep(0.2)

    def until_step(self, name: str, step: int, nodes: int) -> PoolStatus:
        """Wait until the trainer trains on ``nodes`` nodes and has done ``step`` steps."""

        def reached(status: PoolStatus) -> bool:
            trainer = status.trainer(name)
            assert trainer.phase != "failed", trainer.reason
            return len(trainer.nodes) == nodes and trainer.step >= step

        return self.until(f"{name} on {nodes} nodes at step {step}", reached)

    def until_pilots(self, count: int) -> PoolStatus:
        """Wait until this many pilots are in the pool and stay."""
        return self.until(f"{count} pilots", lambda s: sum(not n.leaving for n in s.pool) == count)

    def until_ended(self, ending: str, count: int) -> PoolStatus:
        """Wait until this many jobs have ended in this way."""
        return self.until(f"{count} jobs {ending}", lambda s: s.keeper.endings.get(ending, 0) >= count)

    def submit_elastic(self, max_nodes: int, epochs: int) -> str:
        """A trainer that can use ``max_nodes`` nodes."""
        options = ("--max-nodes", str(max_nodes), *self.gains())
        return self.submit(TRAIN, "--epochs", str(epochs), "--step-s", "0.05", options=options)

    def gains(self) -> tuple[str, ...]:
        """The options of a trainer that gains by every node: by what is measured it may not, because all nodes share
        this machine's cores.
        """
        curve = self.folder / "curve.csv"
        curve.write_text("1,100\n2,190\n3,270\n6,500\n")
        return "--curve", str(curve), "--fixed-curve"

    def trains(self, name: str, nodes: int) -> None:
        """Wait until the trainer does ten more steps on this many nodes."""
        self.until_step(name, self.trainer(name).step + 10, nodes)

    def kill_tree(self, agent: subprocess.Popen[bytes]) -> None:
        """Send SIGKILL to an agent and everything below it: a node failure."""
        proc.kill(proc.tree(agent.pid))
        agent.wait()

    def workers(self, agent: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """The training processes of an agent."""
        return [p for p in psutil.Process(agent.pid).children(recursive=True) if is_worker(p)]

    def coordinator(self) -> int | None:
        return owner(RunDir(self.run_dir))

    def back_from(self, pid: int) -> None:
        """Wait until the killed coordinator, process ``pid``, has been replaced by another one that answers."""
        deadline = time.monotonic() + LIMIT_S
        while self.coordinator() in (None, pid) or self.pilot("ls", check=False).returncode != 0:
            assert time.monotonic() < deadline, "nobody started the coordinator again"
            time.sleep(0.1)

    def supervisor(self) -> list[psutil.Process]:
        """The supervisor that would restart the coordinator."""
        own = [str(self.run_dir), "pilot.service.durability.supervisor"]
        return [p for p in psutil.process_iter() if all(word in _command(p) for word in own)]

    def kill_for_good(self) -> None:
        """Send SIGKILL to the coordinator and its supervisor."""
        coordinator = self.coordinator()
        assert coordinator is not None
        killed = [*self.supervisor(), psutil.Process(coordinator)]
        for process in killed:
            process.kill()
        psutil.wait_procs(killed, LIMIT_S)

    def end(self) -> None:
        """Take it down, by force if a test has broken the pool."""
        if self.coordinator() is not None:
            self.pilot("down")
        for agent in self.agents:
            agent.terminate()
            agent.wait(LIMIT_S)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def is_worker(process: psutil.Process) -> bool:
    """Whether it is a training process: forked by a fork server, so it has the fork server's command line."""
    try:
        parent = process.parent()
        return parent is not None and all("pilot.agent.fork_server" in p.cmdline() for p in (process, parent))
    except psutil.Error:
        return False
