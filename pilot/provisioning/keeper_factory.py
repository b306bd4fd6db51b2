"""Build a site's keepers: for each, the provider that submits, the queue that is polled, and each job's own token, in
its own connection file."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from launchers.steps import agent_command
from pilot.core.errors import SiteError
from pilot.provisioning.keeper import Keeper, KeeperEvent, pool_name
from pilot.provisioning.keepers import Keepers
from pilot.provisioning.provider import PilotProvider
from pilot.provisioning.retry import Troubled
from pilot.provisioning.scheduler import BatchQueue, Queue, SchedulerThread
from pilot.provisioning.scheduler_local import LocalQueue
from pilot.provisioning.scheduler_lsf import LsfQueue
from pilot.provisioning.scheduler_pbs import PbsQueue
from pilot.provisioning.scheduler_slurm import SlurmQueue
from pilot.site.site import Site
from pilot.site.site_files import SiteFile


class JobTokens(Protocol):
    """Offered by the coordinator; see :class:`pilot.service.agents.admission.Admission`."""

    def issue(self, node_type: str = "") -> Path:
        """Create a connection file for another job, on nodes of this type."""

    def bind(self, path: Path, job: str) -> None:
        """The file was given to ``job``."""


def make_keepers(
    site_file: SiteFile, script_dir: Path, run_dir: Path, report: Callable[[KeeperEvent], None], tokens: JobTokens
) -> Keepers:
    """The keepers for the pool of ``run_dir``; see :func:`make_keeper`."""

    def of_type(name: str) -> Keeper:
        def named(event: KeeperEvent) -> None:
            report(replace(event, text=f"{name}: {event.text}") if name and isinstance(event, Troubled) else event)

        site = site_file.of_type(name) if name else site_file
        return make_keeper(site, script_dir, run_dir, named, tokens, node_type=name)

    return Keepers({name: of_type(name) for name in site_file.site.node_types or ("",)})


def make_keeper(
    site_file: SiteFile,
    script_dir: Path,
    run_dir: Path,
    report: Callable[[KeeperEvent], None],
    tokens: JobTokens,
    *,
    command: str | None = None,
    node_type: str = "",
) -> Keeper:
    """A keeper for the pool of ``run_dir``; its jobs' scripts and output go to ``script_dir``. The jobs of each
    ``node_type`` have names of their own.

    Each job gets a token from ``tokens``. ``command`` replaces the agent in the jobs. Nothing is submitted before
    :meth:`Keeper.want`.
    """
    site = site_file.site
    if site.retired:
        raise SiteError(f"site {site.name} is for replays only: {site.retired}")
    provider = PilotProvider(site_file, script_dir)
    provider.prepare()
    name = f"{pool_name(run_dir)}-{node_type}" if node_type else pool_name(run_dir)
    agent = command or agent_command(site)

    def submit(walltime_s: float, without: Collection[str] = ()) -> str:
        """The job finds its connection file in ``PILOT_CONNECTION``. The file of a submission that seems to have failed
        is kept: schedulers sometimes accept a job and then do not answer.
        """
        file = tokens.issue(node_type)
        job = provider.submit(f"env PILOT_CONNECTION={shlex.quote(str(file))} {agent}", name, walltime_s, without)
        tokens.bind(file, job)
        return job

    return Keeper(site, SchedulerThread(submit, make_queue(site, name, provider), provider.output_of), report)


_QUEUES: dict[str, type[BatchQueue]] = {"slurm": SlurmQueue, "pbspro": PbsQueue, "lsf": LsfQueue}


def make_queue(site: Site, name: str, provider: PilotProvider) -> Queue:
    """The queue to poll for the jobs of pool ``name`` on ``site``."""
    if site.scheduler == "local":
        return LocalQueue(name, provider.output_of)
    return _QUEUES[site.scheduler](site, name)
