"""Completion in the shell: ``pilot completion``, and the names of trainers, studies and sites. Completing names never
fails and never blocks for long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from pilot.core.errors import PilotError

if TYPE_CHECKING:
    from pilot.protocol.pool_client import PoolClient

ANSWER_TIMEOUT_S = 1.0


def trainers(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The names of the pool's trainers with this prefix; none if no pool answers."""
    return _offered(context, begun, lambda pool: {t.trainer: t.phase for t in pool.trainers().trainers})


def studies(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The names of the pool's studies with this prefix; none if no pool answers."""
    return _offered(context, begun, lambda pool: {s.study: s.state for s in pool.studies().studies})


def _offered(
    context: click.Context, begun: str, ask: Callable[[PoolClient], Mapping[str, str]]
) -> list[CompletionItem]:
    from pilot.client.pools import find_run_dir, pool_at

    given = context.params.get("run_dir")
    try:
        answer = ask(pool_at(find_run_dir(given and Path(given)), ANSWER_TIMEOUT_S))
    except (PilotError, OSError):
        return []
    return [CompletionItem(name, help=state) for name, state in answer.items() if name.startswith(begun)]


def sites(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The names of the known sites with this prefix; if there are none, complete file names."""
    from pilot.site.site_files import list_sites

    try:
        named = [CompletionItem(name) for name in list_sites() if name.startswith(begun)]
    except (PilotError, OSError):
        named = []
    return named or [CompletionItem(begun, type="file")]


VARIABLE = "_PILOT_COMPLETE"
"""The variable through which the shell requests completions, by click's convention."""

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that makes the shell complete pilot's commands, options, trainers and sites.

    \b
    Examples:
      pilot completion bash > ~/.local/share/bash-completion/completions/pilot
      echo 'eval "$(pilot completion zsh)"' >> ~/.zshrc
    """
    from pilot.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "pilot", VARIABLE).source())
