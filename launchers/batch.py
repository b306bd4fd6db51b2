"""Renders a batch script for users to submit, from a site and a template: it runs a pilot that joins a pool."""

from __future__ import annotations

from pathlib import Path
from string import Template

from launchers.steps import agent_command, directives, pbs_shell, preamble, step
from pilot.core.errors import UserError
from pilot.site.site import Site

_FOLDER = Path(__file__).parent / "templates"


class _Template(Template):
    """``@name`` instead of ``$name``, because shell scripts are full of dollar signs."""

    delimiter = "@"


def batch_script(site: Site, connection: str, *, python: str = "python") -> str:
    """Return the script, for the site's ``sbatch``, ``qsub`` or ``bsub``.

    Parameters
    ----------
    site : the site that it runs on
    connection : path of the pool's connection file, as the nodes see it
    python : the interpreter on the nodes that has this package, unless the site names one

    Raises
    ------
    UserError
        The site has no batch system.
    """
    if site.scheduler == "local":
        raise UserError(f"site {site.name} has no batch system; run: pilot agent --connection {connection}")
    command = agent_command(site, connection, python)
    return _Template((_FOLDER / f"{site.scheduler}.sh").read_text()).substitute(
        site=site.name,
        notice=_notice(site),
        nodes=site.nodes_per_pilot,
        walltime=site.walltime.rsplit(":", 1)[0] if site.scheduler == "lsf" else site.walltime,
        select=_select(site),
        directives="\n".join([*_place(site), *directives(site, own=True)]),
        shell=pbs_shell(Path(connection).parent / "pilots"),
        preamble=preamble(site, site.walltime_s, own=True),
        step=step(site, command),
    )


def _place(site: Site) -> list[str]:
    """Return directives for the job's queue, account and nodes, which Parsl puts elsewhere in its own scripts."""
    match site.scheduler:
        case "slurm":
            options = {"--partition=": site.partition, "--qos=": site.qos, "--account=": site.account}
            options["--cpus-per-task="] = str(site.cores_per_node) if site.cores_per_node else None
            exclusive = ["#SBATCH --exclusive"] if site.exclusive else []
            return [f"#SBATCH {option}{value}" for option, value in options.items() if value] + exclusive
        case "pbspro":
            return [f"#PBS {option} {value}" for option, value in (("-q", site.queue), ("-A", site.account)) if value]
        case "lsf":
            return [f"#BSUB {option} {value}" for option, value in (("-q", site.queue), ("-P", site.account)) if value]
        case "local":
            return []


def _select(site: Site) -> str:
    options = f":{site.select_options}" if site.select_options else ""
    return f"{site.nodes_per_pilot}:ncpus={site.cores_per_node or 1}{options}"


def _notice(site: Site) -> str:
    """Describe a preemption of the node in one line."""
    if site.grace_s <= 0:
        return "Preemption comes without notice: training continues on the other nodes, or from a checkpoint."
    return f"When preempted, the agent leaves within the grace period of {site.grace_s:g} s."
