"""``pilot completion``: shell completion of commands, options, trainers and sites."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_PILOT_COMPLETE"
"""The variable through which the shell requests completions, by click's convention."""

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
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
