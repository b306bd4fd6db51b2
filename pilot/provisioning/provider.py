"""From a site to a Parsl provider: submission, and the exact script. The only file that imports Parsl.

Parsl is neither asked what became of a job (its final states are misleading), nor used to cancel one (it does not
return the scheduler's answer): see :mod:`pilot.provisioning.scheduler`.
"""

from __future__ import annotations

import logging
import re
import tempfile
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

from parsl.launchers.base import Launcher
from parsl.providers import LocalProvider, LSFProvider, PBSProProvider, SlurmProvider

from launchers.steps import PBS_SHELL, directives, exclusion, pbs_shell, preamble, step
from pilot.core.errors import SiteError, SubmissionRefused, SubmitError
from pilot.host import scheduler_environment
from pilot.provisioning.scheduler_slurm import excluded
from pilot.site.site import Site, walltime_seconds, walltime_text
from pilot.site.site_files import SiteFile, prints_to_stderr

SAID_LINES = 3
"""How many lines of a refusal are quoted."""

_ONE_AT_A_TIME = threading.Lock()
"""What Parsl logs and prints while it submits is the whole process's, and each type of nodes has a thread."""

OUTPUTS_KEPT = 1000
"""For how many jobs to remember where their output is; more than a host can run at once as its own queue."""


class StepLauncher(Launcher):  # type: ignore[misc]  # Parsl is not followed: its classes are Any
    """Parsl's launcher interface over :func:`launchers.steps.step`."""

    def __init__(self, site: Site) -> None:
        super().__init__(debug=False)
        self.site = site

    def __call__(self, command: str, tasks_per_node: int, nodes_per_block: int, script_dir: str = "") -> str:  # noqa: ARG002  # Parsl's signature
        """One agent per node, whatever counts Parsl passes."""
        return step(self.site, command)


def make_provider(site: Site, walltime: str | None = None) -> Any:
    """Parsl's provider for ``site``, for jobs of ``walltime`` (default: the site's)."""
    walltime = walltime or site.walltime
    common = {
        "nodes_per_block": site.nodes_per_pilot,
        "worker_init": preamble(site, walltime_seconds(walltime)),
        "launcher": StepLauncher(site),
        "cmd_timeout": int(site.command_timeout_s),
    }
    batch = common | {"walltime": walltime, "scheduler_options": "\n".join(directives(site))}
    match site.scheduler:
        case "local":
            return LocalProvider(**common)
        case "slurm":
            own = {"partition": site.partition, "account": site.account, "qos": site.qos}
            return SlurmProvider(**batch, **own, cores_per_node=site.cores_per_node, exclusive=site.exclusive)
        case "pbspro":
            own = {"queue": site.queue, "account": site.account, "select_options": site.select_options}
            return PBSProProvider(**batch, **own, cpus_per_node=site.cores_per_node or 1)
        case "lsf":
            # #BSUB lines are only sure to be read if the script is redirected to bsub.
            return LSFProvider(**batch, queue=site.queue, project=site.account, bsub_redirection=True)


class PilotProvider:
    """Submits pilots of one site, through its ``provider`` hook if it has one. Parsl's scripts and the jobs' output go
    to ``script_dir``. Its calls block: run them in a thread."""

    def __init__(self, site_file: SiteFile, script_dir: Path) -> None:
        self.site = site_file.site
        self._hook = site_file.provider
        self._script_dir = script_dir
        self._by_walltime: dict[str, Any] = {}
        self._outputs: dict[str, Path | None] = {}

    def prepare(self) -> None:
        """Write the files that jobs need in addition to their scripts, and remove options for jobs from this process's
        environment; call it before the first submission."""
        scheduler_environment.clear()
        if self.site.scheduler == "pbspro":
            shell = pbs_shell(self._script_dir)
            shell.write_text(PBS_SHELL)
            shell.chmod(0o755)

    def submit(
        self, command: str, job_name: str, walltime_s: float | None = None, without: Collection[str] = ()
    ) -> str:
        """Submit one pilot job that runs ``command`` on each of its nodes, none of which is one of ``without``; returns
        the job's id. Raises SubmitError if the scheduler rejected it, or did not answer; the message quotes the
        scheduler."""
        with _ONE_AT_A_TIME, self._submitting(walltime_s, without) as provider, _parsl_errors() as errors:
            try:
                job = provider.submit(command, 1, job_name)
            except Exception as error:  # Parsl passes on whatever its commands raise
                said = _said(str(getattr(error, "stderr", "") or ""))
                if said:
                    raise SubmissionRefused(said) from None
                raise SubmitError(f"submission failed: {error}", transient=True) from None
        if job is None:
            said = _said(errors[-1].getMessage()) if errors else ""
            raise SubmissionRefused(said or "the scheduler gave no job id")
        # Parsl would remember the job for ever, and is never asked about it again.
        self._outputs[job] = _output(provider.resources.pop(job, {}))
        if len(self._outputs) > OUTPUTS_KEPT:
            del self._outputs[next(iter(self._outputs))]
        return str(job)

    def output_of(self, job: str) -> Path | None:
        """The file of the job's standard error; None if it is not known, or no longer remembered."""
        return self._outputs.get(job)

    def script(self, command: str, job_name: str, walltime_s: float | None = None) -> str:
        """Exactly the script that :meth:`submit` would submit."""
        with tempfile.TemporaryDirectory() as folder:
            provider = self._make(self._walltime(walltime_s))
            provider.script_dir = folder
            write = provider._write_submit_script

            def write_and_stop(*arguments: Any) -> None:
                write(*arguments)
                raise _Written(Path(arguments[1]).read_text())

            provider._write_submit_script = write_and_stop
            try:
                provider.submit(command, 1, job_name)
            except _Written as written:
                return str(written).replace(folder, str(self._script_dir))
        raise SiteError(f"site {self.site.name}: its custom provider cannot show its script")

    def _provider(self, walltime_s: float | None) -> Any:
        walltime = self._walltime(walltime_s)
        if walltime not in self._by_walltime:
            self._by_walltime[walltime] = self._make(walltime)
        return self._by_walltime[walltime]

    @contextmanager
    def _submitting(self, walltime_s: float | None, nodes: Collection[str]) -> Iterator[Any]:
        """Give a provider whose jobs run on none of ``nodes``, and on ``only_nodes`` if there are any."""
        provider = self._provider(walltime_s)
        plain = getattr(provider, "scheduler_options", "")
        if others := [*self._others, *sorted(nodes)]:
            provider.scheduler_options = f"{plain}\n{exclusion(self.site, others)}\n"
        try:
            yield provider
        finally:
            if others:
                provider.scheduler_options = plain

    @cached_property
    def _others(self) -> list[str]:
        """The nodes that are not in the site's ``only_nodes``, as a list of Slurm; empty if there are none."""
        others = excluded(self.site) if self.site.only_nodes and self.site.scheduler == "slurm" else ""
        return [others] if others else []

    def _walltime(self, walltime_s: float | None) -> str:
        return self.site.walltime if walltime_s is None else walltime_text(walltime_s)

    def _make(self, walltime: str) -> Any:
        # Only PBS can shorten jobs by itself, see docs/admin/schedulers.md.
        shortest = self.site.walltime_min if self.site.scheduler == "pbspro" else None
        site = self.site.replace(walltime=walltime, walltime_min=shortest)
        with prints_to_stderr():
            provider = self._hook(site) if self._hook else make_provider(site)
        provider.script_dir = str(self._script_dir)
        if site.scheduler == "pbspro":
            # After Parsl's own: PBS takes the last one.
            provider.scheduler_options += f"\n#PBS -S {pbs_shell(self._script_dir)}"
        return provider


class _Written(Exception):
    """Not an error: it stops Parsl before it submits, and carries the script."""


def _said(text: str) -> str:
    """What a command wrote to its stderr, without its own name, at the end of a message. Parsl puts ``STDERR:`` before
    it. Slurm names a limit in a line before the last one."""
    lines = [line.strip() for line in text.rpartition("STDERR:")[2].splitlines() if line.strip()]
    return "; ".join(re.sub(r"^\w+: (error: )?", "", line) for line in lines[-SAID_LINES:])


def _output(resource: dict[str, Any]) -> Path | None:
    if script := resource.get("script_path"):
        return Path(f"{script}.err")
    path = resource.get("job_stderr_path")
    return Path(path) if path else None


@contextmanager
def _parsl_errors() -> Iterator[list[logging.LogRecord]]:
    """Collect what Parsl logs as errors, its only report of a failed ``bsub``."""
    handler = BufferingHandler(capacity=1000)
    handler.setLevel(logging.ERROR)
    logger = logging.getLogger("parsl.providers")
    logger.addHandler(handler)
    try:
        yield handler.buffer
    finally:
        logger.removeHandler(handler)
