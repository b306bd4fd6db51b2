"""The option that says which pool a command refers to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pilot.cli.options import Folder, Function
from pilot.client.pools import find_run_dir


def _run_dir_option(default: str) -> Callable[[Function], Function]:
    kind = Folder(file_okay=False, path_type=Path)
    text = f"The pool's run directory (default: {default})."
    return click.option("--run-dir", type=kind, envvar="PILOT_RUN_DIR", help=text)


run_dir_option = _run_dir_option("that of the one pool that is up")
"""``--run-dir``: where the coordinator of the pool in question keeps its files."""

site_run_dir_option = _run_dir_option("one per site, in ~/.local/state/pilot")
"""``--run-dir`` for commands that do not need a running pool: see :func:`pilot.rundir.rundir.default_path`."""


def _in_pool(*, past: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add ``--run-dir`` to a command, which gets the run directory as ``root``."""

    def added(command: Callable[..., Any]) -> Callable[..., Any]:
        @run_dir_option
        @functools.wraps(command)
        def found(*, run_dir: Path | None, **given: Any) -> Any:
            return command(root=find_run_dir(run_dir, past=past), **given)

        return found

    return added


in_running_pool = _in_pool(past=False)
in_any_pool = _in_pool(past=True)
"""For commands that also work with a pool that is down."""
