"""The arguments that follow a script on the command line. They belong to the script, even if one of our options has the
same name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from pilot.core.errors import UserError

END_OF_OPTIONS = "--"


class TakesScript(click.Command):
    """A command whose own options may also follow the script, so the script's own must follow ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as usual; an unknown option may be the script's, so the error says where to put it."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            place = f"put -- before the script's own options: SCRIPT -- {error.option_name} ..."
            raise UserError(f"{ctx.command_path} has no option {error.option_name}; {place}") from None


def for_script(arguments: Sequence[str]) -> list[str]:
    """What the script gets: ``arguments`` without a leading ``--``."""
    return list(arguments[1:] if arguments[:1] == (END_OF_OPTIONS,) else arguments)


def mention_our_options(script: Path, arguments: Sequence[str]) -> None:
    """Tell the user, on stderr, about an option of the current command that is passed to the script instead.

    An option that the script itself mentions is probably the script's, and one after ``--`` is meant for it.
    """
    context = click.get_current_context()
    ours = {name for option in context.command.params for name in option.opts if name.startswith("--")}
    code = script.read_text(errors="replace")
    for name in dict.fromkeys(argument.partition("=")[0] for argument in arguments):
        if name == END_OF_OPTIONS:
            return
        if name in ours and name not in code:
            click.echo(
                f"pilot: note: {name} was passed to {script.name}. For the option of {context.command_path}, put "
                f"{name} before the script; to pass it without this note: {script.name} -- {name} ...",
                err=True,
            )
