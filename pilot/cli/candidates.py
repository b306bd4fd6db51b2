"""Completion of trainers' and sites' names in the shell. It never fails and never blocks for long."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem

from pilot.core.errors import PilotError

ANSWER_TIMEOUT_S = 1.0


def trainers(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The names of the pool's trainers with this prefix; none if no pool answers."""
    from pilot.cli.asking import find_run_dir, pool_at

    given = context.params.get("run_dir")
    try:
        told = pool_at(find_run_dir(given and Path(given)), ANSWER_TIMEOUT_S).trainers()
    except (PilotError, OSError):
        return []
    return [CompletionItem(t.trainer, help=t.phase) for t in told.trainers if t.trainer.startswith(begun)]


def sites(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The names of the known sites with this prefix; if there are none, complete file names."""
    from pilot.io.site_files import list_sites

    try:
        named = [CompletionItem(name) for name in list_sites() if name.startswith(begun)]
    except (PilotError, OSError):
        named = []
    return named or [CompletionItem(begun, type="file")]
