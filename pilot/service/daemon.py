"""The coordinator's process: ``python -m pilot.service.daemon``. ``pilot up`` runs it as a daemon."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from pilot.core.errors import PilotError, UserError
from pilot.core.events import PoolChanged
from pilot.io.addresses import bind_address
from pilot.io.journal import Contents
from pilot.io.listener import allow_many_files
from pilot.io.rundir import Lock, RunDir, default_path
from pilot.io.site_files import SiteFile, load_site_file
from pilot.provisioning.keeper import KeeperEvent
from pilot.provisioning.keeper_factory import make_keeper
from pilot.service import startup
from pilot.service.admission import Admission
from pilot.service.api import Api
from pilot.service.autoscaler import Autoscaler
from pilot.service.launch_store import LaunchStore
from pilot.service.live_driver import Clock, LiveDriver
from pilot.service.roster import Roster
from pilot.service.server import Server
from pilot.service.service import Service
from pilot.service.settings import Settings
from pilot.service.solver_process import SolverProcess
from pilot.service.startup import PoolIdentity
from pilot.service.status_view import About

log = logging.getLogger("pilot.service")


class Live:
    """One running coordinator. Making one binds its port and restores its state; :meth:`run` serves."""

    def __init__(self, rundir: RunDir, site_file: SiteFile, pool: PoolIdentity, pilots: int | None) -> None:
        site = self._site = site_file.site
        self._rundir = rundir
        self._pool = pool
        news: asyncio.Queue[KeeperEvent] = asyncio.Queue()
        self._server = Server(pool.certificate, bind_address(site), pool.port)
        where = startup.announce(rundir, pool, site, site_file.path, self._server)
        self._admission = Admission(where, rundir.pilots, site.nodes_per_pilot)
        self._keeper = make_keeper(site_file, rundir.pilots, rundir.root, news.put_nowait, self._admission)
        self._endpoint = where.endpoint
        self._journal = startup.open_journal(rundir, pool, site)
        self._driver = LiveDriver(pool.core(site), self._journal, Clock(pool.start_s))
        self._launches = LaunchStore(rundir, pool.name, site.checkpoint_dir)
        self._solver = SolverProcess(pool.settings, rundir.solver, self._driver.post)
        self._roster = Roster(site)
        if pool.contents is not None:
            self._restore(pool.contents)
        self._api = Api(self._server, self._driver, self._roster, self._launches, self._about)
        self._service = Service(
            site,
            pool.name,
            self._admission,
            server=self._server,
            driver=self._driver,
            roster=self._roster,
            launches=self._launches,
            solver=self._solver,
            requests=self._api,
            jobs=self._keeper,
        )
        self._autoscaler = Autoscaler(site, self._service, self._driver, self._admission, self._keeper, news, pilots)
        log.info("coordinator %s listens at %s", pool.name, where.endpoint)

    async def run(self) -> None:
        """Serve until the pool has drained, or a second signal says: now."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_end, number, stopped)
        async with asyncio.TaskGroup() as tasks:
            scaling = tasks.create_task(self._autoscaler.run())
            served = (self._service.run(), self._solver.run(), self._autoscaler.listen())
            serving = [tasks.create_task(part) for part in served]
            await _either(stopped.wait(), self._drained())
            scaling.cancel()
            await self._dismiss()
            for task in serving:
                task.cancel()

    def close(self) -> None:
        """Flush the journal and the socket; a pool that has drained is over, and nobody needs to find it again."""
        self._server.close()
        self._journal.close()
        if self._driver.core.draining:
            self._admission.revoke_all()
            startup.withdraw(self._rundir)

    def _restore(self, contents: Contents) -> None:
        """Go on where the journal ends: pilots may come back, what was pending still is."""
        driver, now_s = self._driver, self._driver.clock()
        down_s = now_s - contents.last_s
        driver.restore(contents)
        driver.pending.restart(now_s)
        self._roster.expect(now_s, driver.core.pool.nodes)
        for decision in contents.decisions:
            if isinstance(decision.event, PoolChanged):
                self._roster.gone.update(dict.fromkeys(decision.event.lost, decision.event.cause))
        for trainer in driver.core.trainers.values():
            if trainer.outcome is None:
                self._launches.load(trainer.id)
        if driver.pending.solve is not None:
            self._solver.solve(driver.pending.solve)
        text = f"the coordinator was started again; it was not there for {down_s:.1f} s"
        driver.remark(text=text, down_s=down_s)
        log.warning("%s; %d nodes may come back", text, len(driver.core.pool))

    def _asked_to_end(self, number: int, stopped: asyncio.Event) -> None:
        if self._driver.core.draining:
            log.warning("stopped by a second signal, with %d nodes still there", len(self._driver.core.pool))
            stopped.set()
        else:
            self._api.drain(signal.Signals(number).name)

    async def _dismiss(self) -> None:
        """Cancel what is left of our jobs; who still registers meanwhile is refused."""
        if left := await self._autoscaler.down():
            log.error("these jobs are still there; cancel them by hand: %s", ", ".join(left))
        elif not self._keeper.answers:
            log.error("whether jobs of this pool are left is not known: %s", self._keeper.status().trouble)

    def _about(self) -> About:
        return About(
            self._pool.name, self._site.name, self._endpoint, str(self._rundir.root), keeper=self._keeper.status()
        )

    async def _drained(self) -> None:
        while not (self._driver.core.draining and not len(self._driver.core.pool)):
            await self._driver.wait_for_change()


async def _either(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    _, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()


def main(arguments: list[str] | None = None) -> int:
    """Run a coordinator in the foreground; its exit status."""
    os.umask(0o077)
    allow_many_files()
    screen = os.dup(2)
    options = _parser().parse_args(arguments)
    try:
        site_file = load_site_file(options.site)
        rundir = RunDir(options.run_dir or default_path(site_file.site.name))
        settings = _settings(options)
        settings.config()
        rundir.create()
        lock = Lock(rundir)  # held until the process has ended
        _log_to(rundir.log)
    except PilotError as error:
        return _fail(error, screen)
    try:
        asyncio.run(_serve(rundir, site_file, settings, options.pilots))
    except BaseExceptionGroup as group:
        return _fail(_first(group), screen, rundir.log)
    except Exception as error:
        return _fail(error, screen, rundir.log)
    finally:
        del lock
    return 0


async def _serve(rundir: RunDir, site_file: SiteFile, settings: Settings, pilots: int | None) -> None:
    live = Live(rundir, site_file, startup.open_pool(rundir, site_file.site, settings), pilots)
    try:
        await live.run()
    finally:
        live.close()


def _settings(options: argparse.Namespace) -> Settings:
    return Settings(**{name: getattr(options, name) for name in Settings.__struct_fields__})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pilot.service.daemon", description=__doc__)
    parser.add_argument("--run-dir", type=Path, help="default: $PILOT_RUN_DIR, or pilot/<site> in the state directory")
    parser.add_argument("--site", required=True, help="a site's name, or the path of a site file")
    parser.add_argument("--pilots", type=int, help="pilots to keep; default: as many as the trainers can use")
    defaults = Settings()
    for name in Settings.__struct_fields__:
        value = getattr(defaults, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    return parser


def _log_to(path: Path) -> None:
    """Also what solvers and libraries say on stderr goes to the log: whoever read it may be gone by then."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"cannot write the log {path}: {error.strerror}") from None
    os.dup2(file, 2)
    os.close(file)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def _fail(error: BaseException, screen: int, log_file: Path | None = None) -> int:
    """One line on the screen, if somebody still looks; the traceback of a bug in the log."""
    line, status = f"pilot: the coordinator failed ({type(error).__name__}: {error}); see {log_file}", 1
    if isinstance(error, PilotError):
        line, status = f"pilot: {error}", error.exit_status
    if log_file is not None:
        log.critical("%s", error, exc_info=None if isinstance(error, PilotError) else error)
    with suppress(OSError):
        os.write(screen, f"{line}\n".encode())
    return status


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended a group of tasks; what the others were cancelled with adds nothing."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


if __name__ == "__main__":
    sys.exit(main())
