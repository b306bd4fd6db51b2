"""How a job's script starts the agent on the job's nodes, and which signals reach it there.

Each launcher ends in ``exec``: the script *becomes* the agent or the step launcher, so no shell can receive a signal in
the agent's place. ``srun`` forwards signals; besides, Slurm signals steps before the script. PBS keeps a login shell
above the script, so we use one that survives the signal (``PBS_SHELL``).
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from pilot.site.site import Site

PBS_SHELL = """\
#!/bin/sh
# The login shell above a pilot's script. PBS signals a job's whole session: a shell that TERM ends goes before the
# agent, and PBS sees only at a later look that the agent, too, has left, while the other job waits for the node.
trap '' TERM
exec /bin/bash -l "$@"
"""


def pbs_shell(pilots: Path) -> Path:
    """Return the path of ``PBS_SHELL``, beside the scripts and output of a pool's jobs in ``pilots``."""
    return pilots / "shell"


def agent_command(site: Site, connection: str | None = None, python: str = sys.executable) -> str:
    """The shell command that runs the agent; ``connection`` is the connection file's path, None if the environment has
    it.

    ``python`` is the interpreter unless the site names its own. ``-P``: nothing is imported from the job's folder.
    """
    options = ["--connection", connection] if connection is not None else []
    options += ["--interface", site.interface] if site.interface else []
    options += ["--fabric", site.fabric] if site.fabric != "tcp" else []
    return shlex.join([site.python or python, "-P", "-m", "pilot", "agent", *options])


def step(site: Site, command: str) -> str:
    """Return shell lines that run ``command`` once on each of the job's nodes, with all of the node's CPUs."""
    nodes = site.nodes_per_pilot
    match site.launcher:
        case "simple":
            launcher = ""
        case "srun":
            # srun would bind a single-task step to one core; an agent's exit must not end those on other nodes.
            launcher = (
                f"srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 "
                '--export=ALL --cpus-per-task="$SLURM_CPUS_ON_NODE" --cpu-bind=none --kill-on-bad-exit=0 --wait=0'
            )
        case "pals":
            launcher = f"mpiexec -n {nodes} --ppn 1 --cpu-bind none"
        case "mpiexec":
            launcher = f"mpiexec -n {nodes} -ppn 1"
        case "jsrun":
            launcher = f"jsrun -n {nodes} -r 1 -a 1 -c ALL_CPUS -g ALL_GPUS -b none"
    return " ".join(part for part in ("exec", launcher, site.launcher_options, command) if part)


_ONLY_THIS_JOB = """\
# srun takes options from variables, and the shell that submitted this may have left some here.
for name in ${!SLURM_*} ${!SRUN_*}; do
  case $name in
    SLURM_CONF|SLURM_CLUSTER*|SLURM_WORKING_CLUSTER|SLURM_JWT|SLURM_SACK_*) ;;  # the cluster
    SLURM_JOB*|SLURM_HET_*|SLURM_ARRAY_*|SLURM_NODELIST|SLURM_NNODES|SLURM_RESTART_COUNT|SLURM_SUBMIT_*) ;;  # the job
    SLURM_CPUS_ON_NODE|SLURM_GPUS_ON_NODE|SLURM_TASKS_PER_NODE|SLURM_TOPOLOGY_*) ;;  # its nodes
    *) unset "$name" ;;
  esac
done"""


def preamble(site: Site, walltime_s: int, *, own: bool = False) -> str:
    """Return shell lines before the step: they set the job's data for the agent, the folder of temporary files, and
    what the prologue sets. ``own``: for a user's own script, which unsets the submitting shell's options for the step.
    """
    lines = [_ONLY_THIS_JOB] if own and site.launcher == "srun" else []
    lines.append(f"export PILOT_WALLTIME_END=$(( $(date +%s) + {walltime_s} ))")
    if site.scheduler == "local":
        # For a local process, Parsl's job id is the process id of the shell that runs the script.
        lines.append("export PILOT_JOB=$PPID")
    if site.scratch_dir is not None:
        lines.append(f"export TMPDIR={shlex.quote(site.scratch_dir)}")
    return "\n".join([*lines, site.prologue] if site.prologue else lines)


def directives(site: Site, *, own: bool = False) -> list[str]:
    """The scheduler's options beyond queue, account, nodes and wall time, one directive per line.

    ``own``: for a user's own script, which may become a job array; PBS requires arrays to be rerunnable.
    """
    more = [line for line in site.scheduler_options.splitlines() if line.strip()]
    match site.scheduler:
        case "slurm":
            return [*_slurm(site), *more]
        case "pbspro":
            # Write the output directly to its destination instead of copying it there after the job.
            output = f"#PBS -r {'y' if site.requeue or own else 'n'}", "#PBS -k oed"
            return [*output, *([] if own else _shrinks(site)), *more]
        case "lsf":
            return [*_lsf(site), *more]
        case "local":
            return more


def slurm_option(site: Site, *names: str) -> list[str]:
    """Return the values of Slurm's option ``names`` in the site's own lines, of which each may have several options."""
    given = rf"^#SBATCH\s(?:.*\s)?(?:{'|'.join(names)})[=\s]*[\"']?([^\s\"']+)"
    return re.findall(given, site.scheduler_options, re.MULTILINE)


EXCLUDING = frozenset({"slurm", "lsf"})
"""The schedulers that can be told on which nodes a job must not run. PBS has no option for that."""


def exclusion(site: Site, nodes: Sequence[str]) -> str:
    """Return the directive by which a job runs on none of ``nodes``, also if the site's own options exclude some; only
    the last ``--exclude`` counts in Slurm. "" if the scheduler has no such option."""
    match site.scheduler:
        case "slurm":
            return f"#SBATCH --exclude={','.join([*slurm_option(site, '--exclude', '-x'), *nodes])}"
        case "lsf":
            others = " && ".join(f"hname!='{node}'" for node in nodes)
            return f'#BSUB -R "select[{others}]"'
        case _:
            return ""


def _shrinks(site: Site) -> list[str]:
    """Let PBS run the job for less than the site's wall time if it then fits a window (shrink-to-fit). The coordinator
    then sends the agent the end; for a user's own script, the granted time is unknown.
    """
    if site.walltime_min is None:
        return []
    return [f"#PBS -l min_walltime={site.walltime_min}", f"#PBS -l max_walltime={site.walltime}"]


def _slurm(site: Site) -> list[str]:
    lines = ["#SBATCH --requeue" if site.requeue else "#SBATCH --no-requeue", "#SBATCH --open-mode=append"]
    if site.notice_signal:
        # Without "B:" the signal goes only to the job's steps.
        shell = "B:" if site.launcher == "simple" else ""
        lines.append(f"#SBATCH --signal={shell}{site.notice_signal}@{site.notice_lead_s}")
    return lines


def _lsf(site: Site) -> list[str]:
    lines = ["#BSUB -r" if site.requeue else "#BSUB -rn"]
    if site.notice_signal:
        lines += [f"#BSUB -wa {site.notice_signal}", f"#BSUB -wt {max(1, site.notice_lead_s // 60)}"]
    return lines
