"""Which pool is meant, and how to ask its coordinator, or its journal if it is down."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pilot.core.errors import PilotError, UserError
from pilot.rundir.rundir import RunDir, check_readable, default_path, is_abandoned, known_pools, owner, read_end

if TYPE_CHECKING:
    from pilot.protocol.pool_client import PoolClient
    from pilot.rundir.journal import Contents
    from pilot.service.requests.ended_pool import PastPool

Answer = TypeVar("Answer")

BACK_S = 60.0
"""How long a command that follows a pool waits for a crashed coordinator, which its supervisor restarts."""

REPLY_TIMEOUT_S = 30.0
"""A coordinator that takes longer to answer is stopped or unreachable."""


def find_run_dir(given: Path | None, *, past: bool = False) -> Path:
    """``given``, ``$PILOT_RUN_DIR``, or the run directory of this user's only running pool. Pools in their sites' own
    run directories come first; those elsewhere count only if none of these is up. With ``past``, if no pool is up: the
    only past pool."""
    if given is None and (named := os.environ.get("PILOT_RUN_DIR")):
        given = Path(named)
    if given is not None:
        root = given.expanduser().absolute()
        check_readable(root)
        return root
    up = running_pools() or [folder for folder in _default_folders() if is_abandoned(RunDir(folder))]
    found = up or [folder for folder in _default_folders() if past and is_past(folder)]
    if len(found) == 1:
        return found[0]
    if found:
        which, names = "several pools are up" if up else "no pool is up; earlier pools", ", ".join(map(str, found))
        raise UserError(f"{which}: {names}; choose one with --run-dir or PILOT_RUN_DIR")
    earlier = ", or continues an earlier one (pilot pools --all lists them)" if known_pools() else ""
    raise UserError(f"no pool is up; pilot up starts one{earlier}")


def journal_of(rundir: RunDir) -> Contents:
    """The journal of a pool, up or down, as far as it is readable.

    Raises
    ------
    UserError
        No pool has run in that directory, or nothing of its journal is readable.
    """
    from pilot.core.errors import JournalError
    from pilot.rundir.journal import read

    if not rundir.journal.exists():
        raise UserError(f"no pool has run in {rundir.root}: it has no {rundir.journal.name}; give another --run-dir")
    try:
        return read(rundir.journal)
    except JournalError as error:
        raise UserError(str(error)) from None


def running_pools() -> list[Path]:
    """The default run directories whose coordinator is alive; if there are none, those elsewhere."""
    return [one for one in _default_folders() if _has_owner(one)] or [one for one in known_pools() if _has_owner(one)]


def _has_owner(folder: Path) -> bool:
    try:
        return owner(RunDir(folder)) is not None
    except UserError:  # another user's folder, which we may not read
        return False


def _default_folders() -> list[Path]:
    if os.environ.get("PILOT_RUN_DIR"):
        return []
    folder = default_path("any").parent
    try:
        return sorted(path for path in folder.glob("*") if path.is_dir())
    except OSError as error:
        raise UserError(f"cannot look for pools in {folder}: {error.strerror}; give --run-dir") from None


def _wait_for_restart(run_dir: Path, timeout_s: float) -> None:
    """Wait for a crashed coordinator to be restarted; :class:`PilotError` if it is not, or has no supervisor."""
    rundir = RunDir(run_dir)
    if not is_abandoned(rundir):
        return
    gone = f"the coordinator in {run_dir} {_how_it_ended(rundir)} (log: {rundir.log})"
    if not _is_supervised(rundir):
        raise PilotError(f"{gone}; run pilot up for this directory to continue its pool")
    deadline = time.monotonic() + timeout_s
    if timeout_s >= REPLY_TIMEOUT_S:
        print("the coordinator crashed; waiting for its restart", file=sys.stderr)
    while is_abandoned(rundir):
        if time.monotonic() > deadline:
            raise PilotError(f"{gone}; it will be restarted, but was not within {timeout_s:g} s; try again later")
        time.sleep(0.1)


def _how_it_ended(rundir: RunDir) -> str:
    with suppress(UserError):
        if (how := read_end(rundir.ended)) is not None and how.failure:
            return f"failed: {how.failure}"
    return "was killed or crashed"


def _is_supervised(rundir: RunDir) -> bool:
    """Whether a process on this host restarts the coordinator of ``rundir`` when it crashes."""
    import psutil

    from pilot.service.durability import supervisor

    def restarts(command: list[str]) -> bool:
        of = supervisor.run_dir_of(command) if supervisor.MODULE in command else None
        return of is not None and of.resolve() == rundir.root.resolve()

    return any(restarts(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))


def patiently(ask: Callable[[], Answer]) -> Answer:
    """Ask a pool that has answered before; if its coordinator has crashed, wait for the restart."""
    deadline = time.monotonic() + BACK_S
    while True:
        try:
            return ask()
        except UserError:
            raise
        except PilotError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def is_past(run_dir: Path) -> bool:
    """Whether a pool ran here and was shut down."""
    rundir = RunDir(run_dir)
    return rundir.journal.exists() and not rundir.connection.exists()


def any_pool_at(run_dir: Path) -> PoolClient | PastPool:
    """The pool in ``run_dir``, for requests that only read: its coordinator, or its journal if it is down."""
    if not is_past(run_dir):
        return pool_at(run_dir)
    from pilot.service.requests.ended_pool import PastPool

    return PastPool(run_dir)


def pool_at(run_dir: Path, timeout_s: float = REPLY_TIMEOUT_S) -> PoolClient:
    """A client of the coordinator of ``run_dir``; :class:`PilotError` if the coordinator is known to be dead and is not
    restarted within ``timeout_s``.
    """
    from pilot.protocol.pool_client import PoolClient

    _wait_for_restart(run_dir, timeout_s)
    return PoolClient(run_dir / "connection.json", timeout_s)
