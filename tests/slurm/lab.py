"""A real Slurm on one machine: six nodes, preemptable partitions, loopback only, no systemd, one temporary folder.

With MariaDB and slurmdbd installed it keeps accounts, whose limits it enforces; otherwise it has no ``sacct``.

By hand, as root::

    eval "$(python -m tests.slurm.lab up /tmp/lab)"     # prints: export SLURM_CONF=/tmp/lab/slurm.conf
    sinfo
    python -m tests.slurm.lab down /tmp/lab
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.slurm import accounting

DAEMONS = {"munged", "slurmctld", "slurmd", "slurmstepd", "slurmdbd", "mariadbd"}
COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")


def missing() -> str:
    """Why no lab can run here, or "" if one can."""
    if absent := _absent(COMMANDS):
        return f"not installed: {absent} (apt-get install slurmctld slurmd slurm-client munge)"
    return "" if os.geteuid() == 0 else "the lab's daemons need root"


def missing_accounting() -> str:
    """Why a lab here keeps no accounts, or "" if it does."""
    absent = _absent(accounting.COMMANDS)
    return f"not installed: {absent} (apt-get install slurmdbd mariadb-server)" if absent else ""


@dataclass(frozen=True, slots=True)
class LabConfig:
    """What a lab's Slurm does at a preemption, when it declares a silent node dead, how long its controller remembers
    jobs that are over, and whether it keeps accounts."""

    nodes: int = 6
    grace_s: int = 20
    kill_wait_s: int = 10
    user_signal: bool = True
    proctrack: str = "cgroup"
    node_timeout_s: int = 15
    remembers_s: int = 120
    accounting: bool = field(default_factory=lambda: not missing_accounting())

    def render(self, folder: Path, port: int) -> str:
        """``slurm.conf`` of a lab in ``folder`` whose daemons listen on consecutive ports from ``port`` on."""
        host = socket.gethostname().split(".")[0]
        names = f"{node_prefix(port)}[1-{self.nodes}]"
        return f"""\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmdParameters=config_overrides
{"SlurmctldParameters=preempt_send_user_signal" if self.user_signal else ""}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/{self.proctrack}
TaskPlugin=task/none
MpiDefault=none
{accounting.slurm_conf(folder, port + self.nodes + 1) if self.accounting else accounting.NOTHING}
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,sched_min_interval=500000,batch_sched_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait={self.kill_wait_s}
MinJobAge={self.remembers_s}
SlurmdTimeout={self.node_timeout_s}
ReturnToService=2
JobRequeue=1
NodeName=DEFAULT CPUs=4 State=UNKNOWN
NodeName={names} NodeHostname={host} NodeAddr=127.0.0.1 Port=[{port + 1}-{port + self.nodes}]
PartitionName=DEFAULT Nodes=ALL MaxTime=INFINITE OverSubscribe=EXCLUSIVE State=UP
PartitionName=preempt PriorityTier=1 PreemptMode=CANCEL GraceTime={self.grace_s} Default=YES
PartitionName=requeue PriorityTier=1 PreemptMode=REQUEUE GraceTime={self.grace_s}
PartitionName=high PriorityTier=10 PreemptMode=OFF
"""


CGROUP_CONF = "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n"


class Lab:
    """A running lab in ``folder``; create one with :func:`running_lab`."""

    def __init__(self, folder: Path, config: LabConfig) -> None:
        self.folder = folder
        self.config = config
        self.conf = folder / "slurm.conf"
        self.nodes = sorted(path.stem.removeprefix("slurmd-") for path in folder.glob("slurmd-*.pid"))

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which Slurm's commands talk to this lab."""
        slurm = {"SLURM_CONF": str(self.conf), "MYSQL_UNIX_PORT": str(accounting.database_socket(self.folder))}
        return {**os.environ, **slurm, "PATH": _path()}

    def start(self) -> None:
        """Start all daemons and wait until every node is idle."""
        for name in ("state", "spool"):
            (self.folder / name).mkdir(parents=True)
        port = _free_ports(self.config.nodes + 2)
        self.nodes = [f"{node_prefix(port)}{number}" for number in range(1, self.config.nodes + 1)]
        self.conf.write_text(self.config.render(self.folder, port))
        (self.folder / "cgroup.conf").write_text(CGROUP_CONF)
        self._start_munge()
        if self.config.accounting:
            self._start_accounting(port + self.config.nodes + 1)
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        wait_for(lambda: self.nodes_in("idle") == self.config.nodes, "all nodes idle", limit_s=60)

    def start_node(self, node: str) -> None:
        """Start the slurmd of ``node``."""
        (self.folder / "spool" / node).mkdir(exist_ok=True)
        self._daemon("slurmd", "-f", str(self.conf), "-N", node)

    def kill_node(self, node: str) -> None:
        """The node dies: its slurmd, its step daemons and everything in its jobs get SIGKILL.

        Repeated scans catch processes started meanwhile: a surviving step daemon would go on with its job, and nothing
        would end it.
        """
        _signal(_read_pid(self.folder / f"slurmd-{node}.pid"), signal.SIGKILL)
        wait_for(lambda: self._killed_on(node), f"nothing is left of {node}", limit_s=20)

    def pause_controller(self) -> None:
        """The controller stops answering."""
        _signal(_read_pid(self.folder / "slurmctld.pid"), signal.SIGSTOP)

    def resume_controller(self) -> None:
        """It answers again."""
        _signal(_read_pid(self.folder / "slurmctld.pid"), signal.SIGCONT)

    def stop_controller(self) -> None:
        """The controller saves its state and exits."""
        pid = _read_pid(self.folder / "slurmctld.pid")
        _signal(pid, signal.SIGTERM)
        wait_for(lambda: not _lives(pid), "the controller has ended", limit_s=20)

    def start_controller(self) -> None:
        """Start the controller; it continues from its saved state."""
        self._daemon("slurmctld", "-f", str(self.conf))

    def stop_accounting(self) -> None:
        """End slurmdbd."""
        _signal(_read_pid(self.folder / "slurmdbd.pid"), signal.SIGTERM)

    def limit(self, limits: str, entity: str = "user") -> None:
        """Set limits such as "MaxSubmitJobs=2" (-1: none) of root, as ``entity``: "user", "account"; or of "qos"."""
        self.run("sacctmgr", "-i", "modify", entity, "normal" if entity == "qos" else "root", "set", limits)

    def run(self, *command: str, check: bool = True) -> str:
        """Output of one of Slurm's commands."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def sbatch(self, *arguments: str) -> str:
        """Submit a job; returns its id."""
        return self.run("sbatch", "--parsable", "-D", str(self.folder), "-o", "/dev/null", *arguments).strip()

    def state(self, job: str) -> str:
        """The job's long state; "" if the controller no longer knows it."""
        return self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T", check=False).strip()

    def nodes_in(self, state: str) -> int:
        """How many nodes are in ``state``."""
        return len(self.run("sinfo", "-N", "-h", "-p", "high", "-t", state, "-o", "%N", check=False).split())

    def queued(self) -> list[str]:
        """Ids of all unfinished jobs."""
        return self.run("squeue", "-h", "-o", "%A").split()

    def processes(self) -> list[psutil.Process]:
        """Every living process of this lab: its daemons, and everything with its SLURM_CONF in the environment (jobs,
        steps).
        """
        return [p for p in psutil.process_iter() if p.pid != os.getpid() and self._is_mine(p)]

    def job_processes(self) -> list[psutil.Process]:
        """Living processes of jobs: those with a SLURM_JOB_ID of this lab in their environment."""
        return [p for p in self.processes() if _variable(p, "SLURM_JOB_ID")]

    def stop(self) -> None:
        """Cancel every job, stop every daemon, kill what remains; leave no cgroup and no file."""
        self.resume_controller()
        self.run("scancel", "--user=root", "--signal=KILL", "--full", check=False)
        self.run("scancel", "--user=root", check=False)
        wait_for(lambda: not self.run("squeue", "-h", check=False), "jobs gone", limit_s=10, fatal=False)
        daemons = [pid for path in self.folder.glob("*.pid") if (pid := _read_pid(path))]  # the database has none
        for pid in daemons:
            _signal(pid, signal.SIGTERM)
        wait_for(lambda: not any(map(_lives, daemons)), "daemons gone", limit_s=20, fatal=False)
        kill_all(self.processes())
        wait_for(lambda: not self.processes(), "processes gone", limit_s=5, fatal=False)
        self._remove_cgroups()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _is_mine(self, process: psutil.Process) -> bool:
        """Whether it is a daemon, a step daemon (which has no environment, but stays in its slurmd's folder), or part
        of a job.
        """
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            if process.name() in DAEMONS:
                return process.cwd().startswith(str(self.folder)) or str(self.folder) in " ".join(process.cmdline())
            return process.environ().get("SLURM_CONF") == str(self.conf)
        except psutil.Error:
            return False

    def _killed_on(self, node: str) -> bool:
        """Kill everything on ``node``; returns whether nothing was left there, and every step daemon's node is
        known.
        """
        where = [(process, self._node_of(process)) for process in self.processes()]
        kill_all([process for process, of in where if of == node])
        return all(of not in (node, None) for _, of in where)

    def _node_of(self, process: psutil.Process) -> str | None:
        """The node of a process: of a job's by its environment, of a slurmd by its options, of a step daemon by its log
        (None before it has a log). "" for a process on no node, or on none any more.
        """
        try:
            match process.name():
                case "slurmstepd":
                    logs = [Path(file.path).stem for file in process.open_files() if file.path.endswith(".log")]
                    return logs[0].removeprefix("slurmd-") if logs else None
                case "slurmd":
                    return process.cmdline()[-1]
        except psutil.Error:
            return ""
        return _variable(process, "SLURMD_NODENAME")

    def _remove_cgroups(self) -> None:
        for node in self.nodes:
            for top in Path("/sys/fs/cgroup").glob(f"*/slurm_{node}"):
                for folder, _, _ in os.walk(top, topdown=False):
                    with suppress(OSError):
                        Path(folder).rmdir()

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        names = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log"}
        options = [f"--{option}={self.folder / name}" for option, name in (names | {"seed-file": "munge.seed"}).items()]
        self._daemon("munged", "--force", *options)

    def _start_accounting(self, port: int) -> None:
        """Start the database and slurmdbd, which then knows this cluster and its user, root."""
        self._daemon(*accounting.new_database(self.folder))
        self._daemon(*accounting.start_database(self.folder))
        wait_for(accounting.database_socket(self.folder).exists, "the database answers", limit_s=60)
        accounting.write_slurmdbd_conf(self.folder, port)
        self._daemon("slurmdbd")
        wait_for(lambda: not _is_free(port), "slurmdbd answers", limit_s=60)
        self.run("sacctmgr", "-i", "add", "cluster", "lab")

    def _daemon(self, *command: str) -> None:
        subprocess.run(command, env=self.environment, check=True, timeout=60, stdout=subprocess.DEVNULL)


def new_folder() -> Path:
    """A folder for a lab: in memory, since databases wait for disks; with a short path, since it has sockets."""
    return Path(tempfile.mkdtemp(prefix="lab", dir="/dev/shm"))


@contextmanager
def running_lab(folder: Path, config: LabConfig | None = None) -> Iterator[Lab]:
    """A lab in the empty ``folder`` for the duration of the block."""
    lab = Lab(folder, config or LabConfig())
    try:
        lab.start()
        yield lab
    finally:
        lab.stop()


def wait_for(true: Callable[[], bool], what: str, *, limit_s: float, fatal: bool = True) -> float:
    """Poll until ``true()``; returns the seconds that it took. A TimeoutError names ``what`` unless not ``fatal``."""
    start_s = time.monotonic()
    while not true():
        if time.monotonic() - start_s > limit_s:
            if fatal:
                raise TimeoutError(f"not within {limit_s:g} s: {what}")
            break
        time.sleep(0.05)
    return time.monotonic() - start_s


def kill_all(processes: Sequence[psutil.Process]) -> None:
    """SIGKILL them all."""
    for process in processes:
        _signal(process.pid, signal.SIGKILL)


def node_prefix(port: int) -> str:
    """Node names contain the lab's port because control groups are named after nodes, and concurrent labs must not
    share them.
    """
    return f"n{port}x"


def _absent(commands: Sequence[str]) -> str:
    return ", ".join(name for name in commands if shutil.which(name, path=_path()) is None)


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _free_ports(count: int) -> int:
    """First of ``count`` consecutive free TCP ports, below the kernel's ephemeral range; labs that start at the same
    time, even with the same process id, get different ones."""
    for first in range(20000 + secrets.randbelow(500) * 20, 32000, count):
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise RuntimeError("no free ports for the lab")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _read_pid(path: Path) -> int:
    text = path.read_text().strip() if path.exists() else ""
    return int(text) if text.isdecimal() else 0


def _lives(pid: int) -> bool:
    """Whether a daemon runs: one that nobody has waited for has ended, too."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _variable(process: psutil.Process, name: str) -> str:
    try:
        return process.environ().get(name, "")
    except psutil.Error:
        return ""


def main(verb: str, folder: str) -> None:
    """``up FOLDER`` prints what to export; ``down FOLDER`` ends the lab that runs there."""
    lab = Lab(Path(folder).resolve(), LabConfig())
    if reason := missing():
        raise SystemExit(reason)
    if verb == "up":
        lab.start()
        print(f"export SLURM_CONF={lab.conf}")
    else:
        lab.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
