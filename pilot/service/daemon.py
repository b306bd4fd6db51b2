"""The coordinator's process: ``python -m pilot.service.daemon``. ``pilot up`` runs it as a daemon."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from pilot.core.errors import NoRestartError, PilotError, UserError
from pilot.host.printable import printable
from pilot.planners.one_thread import load_numpy
from pilot.protocol.gate import allow_many_files
from pilot.rundir.rundir import Ended, Lock, RunDir, default_path, learned_path, preparing, remember, write_end
from pilot.service import process
from pilot.service.durability import startup
from pilot.service.durability.learned import Learned
from pilot.service.live import Live
from pilot.service.settings import Settings, config_of
from pilot.site.pilot_counts import check, parse
from pilot.site.site_files import SiteFile, load_site_file

log = logging.getLogger("pilot.service")


def main(arguments: list[str] | None = None) -> int:
    """Run a coordinator in the foreground; returns its exit status."""
    os.umask(0o077)
    process.return_large_blocks()
    process.start_children_without_threads()
    allow_many_files()
    for number in process.heeded_signals():
        signal.signal(number, _stop_starting)
    screen = os.dup(2)
    options = _parser().parse_args(arguments)
    owned = None
    try:
        site_file = load_site_file(options.site).on(options.only_nodes)
        rundir = RunDir(options.run_dir or default_path(site_file.site.name))
        learned = Learned.read(learned_path(site_file.site.name), site_file.site.name)
        settings = _settings(options, learned)
        config_of(startup.configured(site_file.site, settings))  # reports mistakes before anything is changed
        options.pilots = parse(options.pilots.split(",")) if options.pilots is not None else None
        check(site_file.site, options.pilots)
        rundir.create()
        lock = Lock(rundir)  # held until the process ends
        process.begin(rundir.log)
        owned = rundir
        remember(rundir.root)
        load_numpy()  # for plans and the status
        _end(rundir, asyncio.run(_serve(rundir, lock, site_file, settings, options, learned)))
        with suppress(OSError):
            lock.leave()
    except BaseExceptionGroup as group:
        return _fail(_first(group), screen, owned)
    except KeyboardInterrupt as stop:
        again = "no pool was changed; pilot up continues one that is here"
        return _fail(UserError(f"the coordinator was stopped by {stop} while starting; {again}"), screen, owned)
    except Exception as error:
        status = _fail(error, screen, owned)
        if options.go_on and not isinstance(error, NoRestartError):
            return PilotError.exit_status  # what worked before may work again (a disk, a quota): the supervisor tries
        return status
    return 0


def _stop_starting(number: int, _frame: object) -> NoReturn:
    """A signal during the start, for example in the middle of a restart: exit, leaving everything as it was.

    Not an ``Exception``, so that it is not mistaken for a journal entry that cannot be applied.
    """
    raise KeyboardInterrupt(signal.Signals(number).name)


async def _serve(
    rundir: RunDir,
    lock: Lock,
    site_file: SiteFile,
    settings: Settings,
    options: argparse.Namespace,
    learned: Learned,
) -> Ended:
    with preparing(rundir.root):
        rundir.ended.unlink(missing_ok=True)
        pool = startup.open_pool(rundir, site_file.site, settings, anew=not options.go_on, fresh=options.fresh)
        live = Live(rundir, lock, site_file, pool, options.pilots, learned, restarted=options.go_on)
    try:
        return await live.run()
    finally:
        live.close()
        await live.wait_closed()


def _end(rundir: RunDir, how: Ended) -> None:
    """Report the end in the log for people, and in a file for ``pilot down``."""
    for problem in how.problems():
        log.error("%s", problem)
    write_end(rundir.ended, how)


def _settings(options: argparse.Namespace, learned: Learned) -> Settings:
    expected = learned.priors
    plain = (expected.ln_a.mean, expected.ln_a.sd, expected.ln_b.mean, expected.ln_b.sd) if learned.found else None
    try:
        given = msgspec.json.decode(options.settings, type=Settings)
    except msgspec.DecodeError as error:
        raise UserError(f"--settings: {error}") from None
    return msgspec.structs.replace(given, priors=plain)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pilot.service.daemon", description=__doc__)
    parser.add_argument("--run-dir", type=Path, help="default: $PILOT_RUN_DIR, or pilot/<site> in the state directory")
    parser.add_argument("--site", required=True, help="a site's name, or the path of a site file")
    parser.add_argument("--only-nodes", help="which nodes pilots may run on; default: those of the site file")
    parser.add_argument("--pilots", help="pilots to keep, or of each type (a100:8,a40:16); default: as useful")
    parser.add_argument("--go-on", action="store_true", help="only continue a pool that did not end cleanly")
    parser.add_argument("--fresh", action="store_true", help="start a new pool; the previous one is set aside")
    parser.add_argument("--settings", default="{}", help="a pilot.service.settings.Settings as JSON")
    return parser


def _fail(error: BaseException, screen: int, rundir: RunDir | None = None) -> int:
    """Print one line, in case a terminal is there; the traceback of an internal error goes to the log."""
    failure = str(error) if isinstance(error, PilotError) else f"{type(error).__name__}: {error}"
    more = f"; see {rundir.log}" if rundir is not None else ""
    line, status = f"pilot: the coordinator failed ({failure}){more}", 1
    if isinstance(error, PilotError):
        line, status = f"pilot: {error}", error.exit_status
    if rundir is not None:
        log.critical("%s", error, exc_info=None if isinstance(error, PilotError) else error)
        with suppress(OSError):
            write_end(rundir.ended, Ended(failure=failure))
    with suppress(OSError):
        os.write(screen, f"{printable(line)}\n".encode())
    return status


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended a group of tasks; the others' cancellations are ignored."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


if __name__ == "__main__":
    sys.exit(main())
