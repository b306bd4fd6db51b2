"""A keeper of jobs on a real scheduler, with a trivial agent: jobs and queues, no training."""

from __future__ import annotations

import asyncio
import functools
import inspect
import shlex
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pilot.protocol.connection import Connection
from pilot.provisioning.keeper import Keeper, KeeperEvent, pool_name
from pilot.provisioning.keeper_factory import make_keeper
from pilot.provisioning.pilot_jobs import JobEnded, JobNoticed
from pilot.provisioning.scheduler import JobEnd, JobPhase
from pilot.service.agents.admission import Admission
from pilot.site.site import Site
from pilot.site.site_files import SiteFile

POLITE = "bash -c 'trap \"exit 0\" USR1 TERM; while :; do sleep 0.1; done'"
STUBBORN = "bash -c 'trap : USR1 TERM; while :; do sleep 0.1; done'"
LIMIT_S = 90.0

_COMES = "touch {folder}/came-${{SLURM_JOB_ID:-${{PBS_JOBID%%.*}}}}; exec {command}"
"""The agent leaves a mark when it is there. A scheduler reports a job as running before any of it runs; a node killed
or a job suspended in between is a different case (Slurm 22.05 then cannot end it for a minute)."""


class Crew:
    """A keeper on the lab whose agents are a shell command."""

    def __init__(self, folder: Path, command: str, site: Site) -> None:
        scripts = folder / "pilots"
        scripts.mkdir()
        self.events: list[KeeperEvent] = []
        self.name = pool_name(folder)
        self._folder = folder
        tokens = Admission(Connection("tcp://127.0.0.1:1", "0" * 64, "u", "e", "pool", "0"), scripts, 1)
        self.keeper = make_keeper(
            SiteFile(site, Path("x.py"), None),
            scripts,
            folder,
            self.events.append,
            tokens,
            command=shlex.join(["sh", "-c", _COMES.format(folder=folder, command=command)]),
        )

    def endings(self) -> list[JobEnd]:
        return [event.ending for event in self.events if isinstance(event, JobEnded)]

    def failures(self) -> list[JobEnded]:
        return [event for event in self.events if isinstance(event, JobEnded) and event.failed]

    def noticed(self) -> list[str]:
        return [event.job for event in self.events if isinstance(event, JobNoticed)]

    async def until(self, true: Callable[[], object], what: str) -> None:
        end_s = time.monotonic() + LIMIT_S
        while not true():
            assert time.monotonic() < end_s, f"not within {LIMIT_S} s: {what}; {self.keeper.status()}, {self.events}"
            await asyncio.sleep(0.05)

    async def until_running(self, count: int) -> None:
        """Wait until this many jobs run, each with an agent."""
        await self.until(lambda: self.keeper.status().running == count == len(self.present()), f"{count} run")
        for job in self.present():
            self.keeper.registered(job)

    def present(self) -> list[str]:
        """The jobs that run and stay, and whose agent is there."""
        jobs = self.keeper.book.scaling_jobs(time.monotonic())
        staying = [job.job for job in jobs if job.phase is JobPhase.RUNNING and not job.leaving]
        return [job for job in staying if (self._folder / f"came-{job.partition('.')[0]}").exists()]


def with_crew(
    command: str, site: Site | Callable[[dict[str, Any]], Site]
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Turn an asynchronous test into a test during which a crew keeps jobs that run ``command`` on ``site``, which may
    depend on the test's fixtures.

    The test may ask for the ``crew``, its ``keeper``, and fixtures; nothing may be left in the queue after it.
    """

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        wanted = inspect.signature(test).parameters
        fixtures = [name for name in wanted if name not in ("crew", "keeper", "tmp_path")] + ["tmp_path"]

        @functools.wraps(test)
        def run(**given: Any) -> None:
            crew = Crew(given["tmp_path"], command, site if isinstance(site, Site) else site(given))
            arguments = {"crew": crew, "keeper": crew.keeper, **given}
            play(crew, lambda _: test(**{name: arguments[name] for name in wanted}))

        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in fixtures]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # the fixtures, for pytest
        return run

    return decorate


def play(crew: Crew, script: Callable[[Keeper], Awaitable[None]]) -> None:
    """Run the keeper while ``script`` runs; nothing may be left in the queue at the end."""

    async def both() -> list[str]:
        loop = asyncio.create_task(crew.keeper.run())
        try:
            await script(crew.keeper)
        finally:
            loop.cancel()
            left = await crew.keeper.down(LIMIT_S)
        return left

    assert asyncio.run(both()) == []
