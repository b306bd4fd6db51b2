"""Options and arguments that several commands have, their types, and what ``--json`` prints."""

from __future__ import annotations

import functools
import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from pilot.cli import candidates
from pilot.core.errors import PilotError, UserError
from pilot.core.trainer.spec import Checking
from pilot.host.printable import all_printable
from pilot.site.site import BetweenNodes

Function = TypeVar("Function", bound=Callable[..., Any])

JSON_FORMAT = 1
"""Incremented when a field in docs/reference/json.md is renamed, removed, or changes its type, unit or meaning."""

MOST = 1_000_000
"""A larger number of nodes, trainers or epochs is a typo."""

EXTRAS = {"top": ("textual", "textual"), "study": ("optuna", "optuna"), "examples": ("sklearn", "scikit-learn")}
"""Extra → the module that shows whether it is installed, and its package."""

_UNITS = {"_s": "SECONDS", "hours": "HOURS"}
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIMES = ("%H:%M", "%H:%M:%S")
_DATES = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")


class Count(click.IntRange):
    """A whole number up to ``MOST``."""

    name = "whole number"

    def __init__(self, least: int = 1) -> None:
        super().__init__(min=least, max=MOST)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002  # click's signature
        return "N"


class Parallel(Count):
    """How many trainers run at once, or ``auto`` (None): sized from the pool."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not value.lstrip("-").isdecimal():
            return None if value == "auto" else self.fail(f"{value!r} is neither a whole number nor auto.", param, ctx)
        return super().convert(value, param, ctx)


class Sizes(click.ParamType[tuple[int, ...]]):
    """Increasing whole numbers separated by commas."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        numbers = str(value).split(",")
        sizes = tuple(map(int, numbers)) if all(n.isascii() and n.isdecimal() and len(n) < 10 for n in numbers) else ()
        if not sizes or any(a >= b for a, b in pairwise((0, *sizes))) or sizes[-1] > MOST:
            self.fail(f"{value!r}: must be increasing whole numbers separated by commas, e.g. 1,2,4,8.", param, ctx)
        return sizes


class FiniteRange(click.FloatRange):
    """A number within a range. Rejects infinity and NaN, which click accepts. The help shows its unit, taken from
    the end of the option's name."""

    name = "number"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002  # click's signature
        return next((unit for suffix, unit in _UNITS.items() if (param.name or "").endswith(suffix)), "NUMBER")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def moment(text: str) -> float:
    """A past time as Unix time, from a duration (``90s``, ``10m``, ``2h``, ``1d`` ago), a time today, or a date."""
    if ago := re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smhd])", text):
        return time.time() - float(ago[1]) * _UNIT_S[ago[2]]
    today = time.strftime("%Y-%m-%d")
    for dated, form in [*((f"{today} {text}", f"%Y-%m-%d {form}") for form in _TIMES), *((text, f) for f in _DATES)]:
        try:
            return time.mktime(time.strptime(dated, form))
        except (ValueError, OverflowError):
            continue
    raise click.BadParameter(f"{text!r} is not a time; use 10m, 2h, 14:30 or 2026-11-22 14:30.")


class Folder(click.Path):
    """A folder. ``~`` is expanded even if the shell did not (because it was quoted, or came from a file of variables);
    an empty variable does not mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("it is empty; name a folder", param, ctx)
        try:
            return super().convert(str(Path(value).expanduser()), param, ctx)
        except RuntimeError:
            self.fail(f"{value}: there is no such home", param, ctx)


POSITIVE = FiniteRange(min=0, min_open=True)
FILE = click.Path(dir_okay=False, path_type=Path)

trainer_argument = click.argument("trainer", shell_complete=candidates.trainers)
study_argument = click.argument("study", shell_complete=candidates.studies)

site_option = click.option(
    "--site",
    default="local",
    envvar="PILOT_SITE",
    shell_complete=candidates.sites,
    metavar="NAME|FILE",
    help="The site's name, or its file.",
)


def pilots_option(what: str) -> Callable[[Function], Function]:
    """``--pilots``: a number, or one for each type of nodes (:func:`pilot.site.pilot_counts.parse`)."""
    more = "on a site with types of nodes, TYPE:N for each that is to have some."
    return click.option("--pilots", multiple=True, metavar="N|TYPE:N", help=f"{what}; {more}")


python_option = click.option(
    "--python", metavar="PATH", default=sys.executable, show_default="this one", help="Interpreter for the script."
)

env_option = click.option(
    "--env",
    "named",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Set an environment variable, or pass on its current value. Repeatable.",
)

check_option = click.option(
    "--check",
    type=click.Choice(Checking, case_sensitive=False),
    help="Check SCRIPT on its first node (see pilot check) before it gets a second one: auto, if that is possible; "
    "require, it must pass; off.  [default: the site's, usually auto]",
)

sync_option = click.option(
    "--sync",
    metavar="KIND:every=N",
    help="Exchange parameters only every N steps, instead of gradients in each: diloco:every=N[,NAME=VALUE...] or"
    " localsgd:every=N. Replaces the script's sync=.",
)

between_option = click.option(
    "--between-nodes",
    type=click.Choice(get_args(BetweenNodes)),
    help="How nodes sum their gradients: over MPI; or between training processes, by gloo (models on CPUs) or nccl (on"
    " GPUs).  [default: the site's, usually mpi]",
)

solve_limit_option = click.option("--solve-limit-s", type=POSITIVE, default=10.0, help="Time limit per plan.")

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def page_option(default: str) -> Callable[[Function], Function]:
    """``--output``: an HTML page's file."""
    return click.option("--output", type=FILE, metavar="FILE", help=f"File to write.  [default: {default}]")


def answers(command: Callable[..., tuple[Any, ...]]) -> Callable[..., int]:
    """Add ``--json`` to ``command``. It returns its answer, for scripts; a text, or a function that prints one, for
    people; and perhaps an exit status.
    """

    @json_option
    @functools.wraps(command)
    def printed(*, as_json: bool, **given: Any) -> int:
        answer, text, *status = command(**given)
        if as_json:
            click.echo(to_json(answer))
        elif callable(text):
            text()
        else:
            click.echo(text)
        return int(status[0]) if status else 0

    return printed


def each_trainer(command: Callable[..., tuple[Any, str]]) -> Callable[..., int]:
    """Give ``command`` the argument TRAINERS, and ``--json``. It gets one ``trainer`` at a time, and returns an
    answer, for scripts, and a text for people. If it fails for one, the others follow; the exit status is the worst.
    """

    @click.argument("trainers", nargs=-1, required=True, shell_complete=candidates.trainers)
    @json_option
    @functools.wraps(command)
    def done(*, trainers: tuple[str, ...], as_json: bool, **given: Any) -> int:
        worst = 0
        for trainer in dict.fromkeys(trainers):
            try:
                answer, text = command(trainer=trainer, **given)
            except PilotError as error:
                click.echo(f"pilot: {error}", err=True)
                worst = max(worst, error.exit_status)
            else:
                click.echo(to_json(answer) if as_json else text)
        return worst

    return done


def to_json(value: Any) -> str:
    """The JSON of an answer. NaN and infinity (the loss of a diverged training) become ``null``.

    The values that docs/reference/json.md describes, and no others, are :class:`msgspec.Struct`; their output starts
    with the format's number.
    """
    import msgspec

    if isinstance(value, msgspec.Struct):
        value = {"format": JSON_FORMAT, **msgspec.to_builtins(value)}
    try:
        text = msgspec.json.encode(value)
    except UnicodeEncodeError:  # a file name that is not valid text
        text = msgspec.json.encode(all_printable(msgspec.to_builtins(value)))
    return msgspec.json.format(text).decode()


def need(extra: str) -> None:
    """Check that what our ``extra`` installs is there; :class:`UserError` if not."""
    module, package = EXTRAS[extra]
    if find_spec(module) is None:
        command = click.get_current_context().command_path
        raise UserError(f"{command} needs {package}: pip install 'pilot-train[{extra}]'")


# --- the arguments that follow a script belong to it, even if one of our options has the same name

END_OF_OPTIONS = "--"


class TakesScript(click.Command):
    """A command whose own options may also follow the script, so the script's own must follow ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as usual; an unknown option may be the script's, so the error shows where to put it."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            place = f"put -- before the script's own options: SCRIPT -- {error.option_name} ..."
            raise UserError(f"{ctx.command_path} has no option {error.option_name}; {place}") from None


def for_script(arguments: Sequence[str]) -> list[str]:
    """The script's arguments: ``arguments`` without a leading ``--``."""
    return list(arguments[1:] if arguments[:1] == (END_OF_OPTIONS,) else arguments)


def mention_our_options(script: Path, arguments: Sequence[str]) -> None:
    """Print a note, on stderr, about an option of the current command that is passed to the script instead.

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
