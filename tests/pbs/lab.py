"""An installed OpenPBS on one machine: a server, a scheduler and three MoMs in their own namespaces.

Its network is a loopback interface with addresses of 10.77.0.0/24 (PBS rejects those of 127/8), its ``/etc`` and
``/var/spool`` are copies in memory (PBS_HOME must not be where others can write), and each MoM has its own host name.
Nothing of it is visible outside, and nothing is left behind. Neither Debian nor PyPI has an OpenPBS: unless one is
installed in ``/opt/pbs`` or ``$PBS_EXEC``, there is no lab.

By hand, as root::

    eval "$(python -m tests.pbs.lab up /tmp/lab)"     # prints where the commands are
    qstat -B
    python -m tests.pbs.lab down /tmp/lab
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.slurm.lab import kill_all, wait_for

NODES = ("n1", "n2", "n3")
CPUS = 4
SPOOL = Path("/var/spool")
SERVER_CONF = SPOOL / "pbs.conf"
_COMMANDS = (
    "qsub",
    "qstat",
    "qselect",
    "qdel",
    "qmgr",
    "qhold",
    "qrls",
    "qrerun",
    "qsig",
    "qmove",
    "pbsnodes",
    "qalter",
)
_FIRST_PORT = 15100

# All of it runs in the namespaces; $1 is PBS_EXEC, $2 the lab's folder, $3 Python's installation.
_SETUP = r"""
set -e
export LC_ALL=C PBS_EXEC=$1
mount --make-rprivate /
hostname pbs0
ip link set lo up
for i in 1 2 3 4; do ip address add 10.77.0.$i/24 dev lo; done
mount -t tmpfs -o mode=755 tmpfs /mnt
cp -a /etc /mnt/etc
printf '127.0.0.1 localhost\n10.77.0.1 pbs0\n10.77.0.2 n1\n10.77.0.3 n2\n10.77.0.4 n3\n' > /mnt/etc/hosts
echo 'ada:x:4711:4711::/var/spool/ada:/bin/bash' >> /mnt/etc/passwd
echo 'ada:x:4711:' >> /mnt/etc/group
mount --bind /mnt/etc /etc
home=~root
case "$3" in
"$home"/*)    # the interpreter, for users who may not look into root's home
    mkdir /mnt/python
    mount --bind "$3" /mnt/python
    mount -t tmpfs -o mode=755 tmpfs "$home"
    mkdir -p "$3"
    mount --bind /mnt/python "$3"
esac
mount -t tmpfs -o mode=755 tmpfs /var/spool
test ! -d /run/postgresql || mount -t tmpfs -o mode=1777 tmpfs /run/postgresql
mkdir -p /var/spool/pbs /var/spool/ada
chown 4711:4711 /var/spool/ada
conf() {
    printf 'PBS_EXEC=%s\nPBS_HOME=%s\nPBS_SERVER=pbs0\nPBS_CORE_LIMIT=0\nPBS_START_SERVER=%s\nPBS_START_SCHED=%s\n' \
        "$PBS_EXEC" "$1" "$2" "$2"
    printf 'PBS_START_COMM=%s\nPBS_START_MOM=%s\n' "$2" $((1 - $2))
}
conf /var/spool/pbs 1 > /var/spool/pbs.conf
export PBS_CONF_FILE=/var/spool/pbs.conf
"$PBS_EXEC/libexec/pbs_habitat"
"$PBS_EXEC/libexec/pbs_init.d" start
for i in 1 2 3; do
    home=/var/spool/pbs-n$i
    mkdir $home
    cp -a /var/spool/pbs/aux /var/spool/pbs/checkpoint /var/spool/pbs/mom_logs /var/spool/pbs/mom_priv \
        /var/spool/pbs/spool /var/spool/pbs/undelivered /var/spool/pbs/pbs_environment /var/spool/pbs/pbs_version $home
    conf $home 0 > $home.conf
    printf 'PBS_MOM_SERVICE_PORT=%s\nPBS_MANAGER_SERVICE_PORT=%s\nPBS_MOM_NODE_NAME=n%s\n' \
        $((15100 + 10 * i)) $((15101 + 10 * i)) $i >> $home.conf
    printf '$clienthost pbs0\n$usecp *:/ /\n' > $home/mom_priv/config
done
touch "$2/ready"
exec sleep infinity
"""


def installed() -> Path:
    """Where an OpenPBS would be installed."""
    return Path(os.environ.get("PBS_EXEC", "/opt/pbs"))


def missing() -> str:
    """Why no lab can run here, or "" if one can."""
    if not (installed() / "sbin" / "pbs_mom").exists():
        return f"no OpenPBS in {installed()} (set PBS_EXEC)"
    if not (iff := installed() / "sbin" / "pbs_iff").stat().st_mode & stat.S_ISUID:
        return f"{iff} is not setuid root, so PBS would answer root only"
    absent = [name for name in ("unshare", "nsenter", "ip", "setpriv") if shutil.which(name, path=_path()) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    if os.geteuid() != 0:
        return "the lab's daemons need root"
    tried = subprocess.run(["unshare", "--net", "--mount", "--uts", "true"], capture_output=True, text=True)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass
class Lab:
    """A running lab; create one with :func:`running_lab`. ``bin`` has PBS's commands for programs outside."""

    folder: Path
    anchor: int = 0

    @property
    def bin(self) -> Path:
        """A folder of commands that do their work inside the lab."""
        return self.folder / "bin"

    def start(self) -> None:
        """Start all daemons, and wait until every node is free."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        log = (self.folder / "setup.log").open("w")
        command = [
            "unshare",
            "--net",
            "--mount",
            "--uts",
            "sh",
            "-xc",
            _SETUP,
            "sh",
            str(installed()),
            str(self.folder),
            sys.base_prefix,
        ]
        started = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        self.anchor = started.pid
        (self.folder / "anchor").write_text(str(self.anchor))
        wait_for(lambda: (self.folder / "ready").exists() or started.poll() is not None, "PBS is up", limit_s=120)
        if started.poll() is not None:
            raise RuntimeError(f"no PBS: {(self.folder / 'setup.log').read_text()[-2000:]}")
        self._write_commands()
        for node in NODES:
            self.start_node(node)
        self.qmgr(
            "set server scheduler_iteration=600",
            "set server flatuid=True",
            "set server acl_roots=root@pbs0",
            "set server query_other_jobs=True",
            *(
                f"create queue {name} queue_type=execution,enabled=True,started=True,Priority={priority}"
                for name, priority in (("preemptable", 10), ("demand", 200))
            ),
            "create queue entrance queue_type=route,route_destinations=preemptable,enabled=True,started=True",
            *(f"create node {node} Mom={node},Port={_port(node)},resources_available.ncpus={CPUS}" for node in NODES),
        )
        wait_for(lambda: self.nodes_in("free") == list(NODES), "all nodes free", limit_s=60)

    def start_node(self, node: str) -> None:
        """Start the MoM of ``node``."""
        # A MoM removes folders of jobs that are not its own from /var/tmp.
        script = f"mount -t tmpfs -o mode=1777 tmpfs /var/tmp; hostname {node}; exec {installed()}/sbin/pbs_mom"
        self.run("unshare", "--uts", "--mount", "sh", "-c", script, conf=SPOOL / f"pbs-{node}.conf")

    def kill_node(self, node: str) -> None:
        """The node dies: its MoM and everything in its jobs get SIGKILL."""
        kill_all([p for p in self.processes() if _host(p) == node])

    def dedicate(self, *from_to_s: float) -> None:
        """Dedicate the time between two Unix times, which the scheduler knows in minutes, to certain queues; without
        them, none."""
        times = " ".join(time.strftime("%m/%d/%Y %H:%M", time.localtime(at_s)) for at_s in from_to_s)
        self.run("sh", "-c", f"echo '{times}' > {SPOOL}/pbs/sched_priv/dedicated_time")
        self._signal("pbs_sched", signal.SIGHUP)

    def pause_server(self) -> None:
        """The server stops answering."""
        self._signal("pbs_server.bin", signal.SIGSTOP)

    def resume_server(self) -> None:
        """It answers again."""
        self._signal("pbs_server.bin", signal.SIGCONT)

    def within(self, *command: str, folder: str = "/", user: str | None = None, conf: Path = SERVER_CONF) -> list[str]:
        """``command`` as it is run inside, in ``folder``; ``user``: not as root."""
        where = ["nsenter", "-t", str(self.anchor), "--net", "--mount", "--uts", f"--wd={folder}"]
        who = ["setpriv", "--reuid=4711", "--regid=4711", "--clear-groups"] if user else []
        about = [f"PBS_CONF_FILE={conf}", f"PATH={installed()}/bin:{installed()}/sbin:{_path()}"]
        about += [f"HOME={SPOOL}/{user}", f"USER={user}", f"LOGNAME={user}"] if user else []
        return [*where, *who, "env", *about, *command]

    def run(self, *command: str, check: bool = True, user: str | None = None, conf: Path = SERVER_CONF) -> str:
        """Output of a command run inside."""
        done = subprocess.run(
            self.within(*command, user=user, conf=conf),
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def qmgr(self, *commands: str) -> None:
        """Change a setting of the server, as its admin."""
        for command in commands:
            self.run("qmgr", "-c", command)

    def qsub(self, *arguments: str, user: str | None = None) -> str:
        """Submit a job; returns its id."""
        return self.run("qsub", "-o", "/dev/null", "-e", "/dev/null", *arguments, user=user).strip()

    def attribute(self, job: str, name: str) -> str:
        """A job's attribute, such as ``job_state``; "" if it has none."""
        lines = self.run("qstat", "-x", "-f", job, check=False) or self.run("qstat", "-f", job, check=False)
        fields = (line.strip().partition(" = ") for line in lines.replace("\n\t", "").splitlines())
        return next((value for field, _, value in fields if field == name), "")

    def state(self, job: str) -> str:
        """The letter of the job's state, "" if the server does not know it."""
        return self.attribute(job, "job_state")

    def nodes_in(self, state: str) -> list[str]:
        """The nodes in a state."""
        lines = self.run("pbsnodes", "-a", "-F", "dsv", "-D", "|", check=False).splitlines()
        return sorted(line.split("|")[0].partition("=")[2] for line in lines if f"|state={state}|" in line)

    def queued(self) -> list[str]:
        """Ids of all unfinished jobs."""
        return self.run("qselect", check=False).split()

    def processes(self) -> list[psutil.Process]:
        """Every living process inside: daemons and jobs."""
        inside = Path(f"/proc/{self.anchor}/ns/net").readlink()
        return [p for p in psutil.process_iter() if p.pid != self.anchor and _network(p) == inside]

    def job_processes(self) -> list[psutil.Process]:
        """Living processes of jobs."""
        return [p for p in self.processes() if _has(p, "PBS_JOBID")]

    def states_on(self, node: str) -> list[str]:
        """The states of the pilots' processes on a node, without their guardians."""
        found = [p for p in self.job_processes() if _host(p) == node and _has(p, "PILOT_AGENT_MARK")]
        return [p.status() for p in found if psutil.pid_exists(p.pid)]

    def empty(self) -> None:
        """Remove all jobs and restore the lab's initial settings."""
        self.resume_server()
        if jobs := self.queued():
            self.run("qdel", "-W", "force", *jobs, check=False)
        wait_for(
            lambda: not self.queued() and self.nodes_in("free") == list(NODES), "all free", limit_s=60, fatal=False
        )

    def stop(self) -> None:
        """Kill everything inside; the namespaces and everything in them disappear with the last process."""
        if self.anchor and psutil.pid_exists(self.anchor):
            self.resume_server()
            wait_for(lambda: self._killed_all(), "processes gone", limit_s=10, fatal=False)
            with suppress(ProcessLookupError):
                os.kill(self.anchor, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _killed_all(self) -> bool:
        kill_all(left := self.processes())
        return not left

    def _signal(self, daemon: str, number: signal.Signals) -> None:
        for process in self.processes():
            with suppress(psutil.Error):
                if process.name() == daemon:
                    process.send_signal(number)

    def _write_commands(self) -> None:
        self.bin.mkdir(exist_ok=True)
        for name in _COMMANDS:
            path = self.bin / name
            command = " ".join(self.within(name, folder='"$PWD"'))
            path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            path.chmod(0o755)


@contextmanager
def running_lab(folder: Path) -> Iterator[Lab]:
    """A lab in ``folder`` for the duration of the block."""
    lab = Lab(folder)
    try:
        lab.start()
        yield lab
    finally:
        lab.stop()


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _port(node: str) -> int:
    return _FIRST_PORT + 10 * int(node.removeprefix("n"))


def _network(process: psutil.Process) -> Path | None:
    try:
        return Path(f"/proc/{process.pid}/ns/net").readlink()
    except OSError:
        return None


def _host(process: psutil.Process) -> str:
    """The host name that a process sees: each MoM and its jobs have their own."""
    try:
        asked = subprocess.run(["nsenter", "-t", str(process.pid), "--uts", "hostname"], capture_output=True, text=True)
    except OSError:
        return ""
    return asked.stdout.strip()


def _has(process: psutil.Process, variable: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and variable in process.environ()
    except psutil.Error:
        return False


def main(verb: str, folder: str) -> None:
    """``up FOLDER`` prints what to export; ``down FOLDER`` ends the lab that runs there."""
    if reason := missing():
        raise SystemExit(reason)
    lab = Lab(Path(folder).resolve())
    if verb == "up":
        lab.start()
        print(f"export PATH={lab.bin}:$PATH")
    else:
        lab.anchor = int((lab.folder / "anchor").read_text())
        lab.stop()


def options(nodes: int = 1) -> Sequence[str]:
    """A job of this many whole nodes."""
    return ("-l", f"select={nodes}:ncpus={CPUS}", "-l", "walltime=1:00:00")


if __name__ == "__main__":
    main(*sys.argv[1:])
