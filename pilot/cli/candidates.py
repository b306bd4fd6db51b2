"""Completion of the names of trainers, studies and sites in the shell. It never fails and never blocks for long."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from pilot.core.errors import PilotError

if TYPE_CHECKING:
    from pilot.io.pool_client import PoolClient

ANSWER_TIMEOUT_S = 1.0


def trainers(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The names of the pool's trainers with this prefix; none if no pool answers."""
    try:
        told = _pool(context).trainers()
    except (PilotError, OSError):
        return []
    return [CompletionItem(t.trainer, help=t.phase) for t in told.trainers if t.trainer.startswith(begun)]


def studies(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The names of the pool's studies with this prefix; none if no pool answers."""
    try:
        told = _pool(context).studies()
    except (PilotError, OSError):
        return []
    return [CompletionItem(s.study, help=s.state) for s in told.studies if s.study.startswith(begun)]


def _pool(context: click.Context) -> PoolClient:
    from pilot.cli.asking import find_run_dir, pool_at

    given = context.params.get("run_dir")
    return pool_at(find_run_dir(given and Path(given)), ANSWER_TIMEOUT_S)


def sites(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The names of the known sites with this prefix; if there are none, complete file names."""
    from pilot.io.site_files import list_sites

    try:
        named = [CompletionItem(name) for name in list_sites() if name.startswith(begun)]
    except (PilotError, OSError):
        named = []
    return named or [CompletionItem(begun, type="file")]
