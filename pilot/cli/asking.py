"""Which pool a command means, and how to ask its coordinator."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pilot.cli import candidates
from pilot.core.commands import Outcome
from pilot.core.errors import PilotError, UserError
from pilot.core.trainer import Phase
from pilot.io.rundir import RunDir, check_readable, default_path, is_abandoned, owner

if TYPE_CHECKING:
    from pilot.io.journal import Contents
    from pilot.io.pool_client import PoolClient
    from pilot.service.past import PastPool

Function = TypeVar("Function", bound=Callable[..., Any])

ENDED = frozenset(Phase(outcome) for outcome in Outcome)
"""The phases of a trainer that has ended."""

AT_REST = ENDED | {Phase.SHELVED}
"""The phases of a trainer that nothing becomes of by itself; a shelved trial is its study's to go on with."""

JSON_FORMAT = 1
"""Raised when a field of what docs/json.md describes is renamed, removed, or changes its type, unit or meaning."""

REPLY_TIMEOUT_S = 30.0
"""A coordinator that has not answered by then is stopped or cut off."""


def run_dir_option(function: Function) -> Function:
    """``--run-dir``: where the pool's coordinator keeps its files."""
    return click.option(
        "--run-dir",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="PILOT_RUN_DIR",
        help="The pool's run directory (default: that of the only pool that is up).",
    )(function)


def site_option(function: Function) -> Function:
    """``--site``: which machine."""
    return click.option(
        "--site",
        default="local",
        show_default=True,
        envvar="PILOT_SITE",
        shell_complete=candidates.sites,
        help="A site's name or file.",
    )(function)


def json_option(function: Function) -> Function:
    """``--json``: for scripts."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def to_json(value: Any) -> str:
    """What ``--json`` prints. A number that is none (the loss of a training that diverged) becomes ``null``.

    What docs/json.md describes, and only that, is a :class:`msgspec.Struct`: the number of its format comes first.
    """
    import msgspec

    if isinstance(value, msgspec.Struct):
        value = {"format": JSON_FORMAT, **msgspec.to_builtins(value)}
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def find_run_dir(given: Path | None, *, past: bool = False) -> Path:
    """``given``, or the run directory of the only pool of this user that is up; where none is and a ``past`` one does,
    of the only one that was."""
    if given is not None:
        root = given.absolute()
        check_readable(root)
        return root
    up = running_pools()
    if not up:
        for folder in _default_folders():
            _refuse_abandoned(folder)
        were = [folder for folder in _default_folders() if is_past(folder)] if past else []
        if len(were) == 1:
            return were[0]
        if were:
            names = ", ".join(map(str, were))
            raise UserError(f"no pool is up; these were: {names}; say which one with --run-dir or PILOT_RUN_DIR")
        raise UserError("no pool is up here; start one with pilot up, or name its directory with --run-dir")
    if len(up) > 1:
        names = ", ".join(map(str, up))
        raise UserError(f"several pools are up: {names}; say which one with --run-dir or PILOT_RUN_DIR")
    return up[0]


def what_happened(rundir: RunDir) -> Contents:
    """The journal of a pool that is up or down, as far as it can be read.

    Raises
    ------
    UserError
        No pool has run in that directory, or its journal is damaged from the start.
    """
    from pilot.core.errors import JournalError
    from pilot.io.journal import read

    if not rundir.journal.exists():
        raise UserError(f"no pool has run in {rundir.root}: it has no {rundir.journal.name}; name another --run-dir")
    try:
        return read(rundir.journal, whole=False)
    except JournalError as error:
        raise UserError(str(error)) from None


def running_pools() -> list[Path]:
    """The default run directories whose coordinator lives."""
    return [folder for folder in _default_folders() if _has_owner(folder)]


def _has_owner(folder: Path) -> bool:
    try:
        return owner(RunDir(folder)) is not None
    except UserError:  # whoever lives there, we may not ask
        return False


def _default_folders() -> list[Path]:
    if "PILOT_RUN_DIR" in os.environ:
        return []
    return sorted(path for path in default_path("any").parent.glob("*") if path.is_dir())


def _refuse_abandoned(run_dir: Path) -> None:
    """Nobody would answer, and waiting for it would say less."""
    rundir = RunDir(run_dir)
    if is_abandoned(rundir):
        gone = f"the coordinator in {run_dir} was killed or has failed (its log is {rundir.log})"
        raise PilotError(f"{gone}; pilot up for this directory goes on with its pool")


def is_past(run_dir: Path) -> bool:
    """Whether a pool was here that was taken down."""
    rundir = RunDir(run_dir)
    return rundir.journal.exists() and not rundir.connection.exists()


def told_by(run_dir: Path) -> PoolClient | PastPool:
    """What tells of the pool of ``run_dir``: its coordinator, or its journal where it is down."""
    if not is_past(run_dir):
        return pool_at(run_dir)
    from pilot.service.past import PastPool

    return PastPool(run_dir)


def pool_at(run_dir: Path, timeout_s: float = REPLY_TIMEOUT_S) -> PoolClient:
    """What asks the coordinator of ``run_dir``; :class:`PilotError` where that one is known to be gone."""
    from pilot.io.pool_client import PoolClient

    _refuse_abandoned(run_dir)
    return PoolClient(run_dir / "connection.json", timeout_s)
