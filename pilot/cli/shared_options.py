"""Options that several commands have."""

from __future__ import annotations

import sys

import click

from pilot.cli.numbers import FiniteRange
from pilot.core.spec import Checking

python_option = click.option(
    "--python", metavar="PATH", default=sys.executable, help="Interpreter for the script (default: this one)."
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
    type=click.Choice(Checking),
    help="Check SCRIPT on its first node (see pilot check) before it gets a second one: auto, if that is possible; "
    "require, it must pass; off.  [default: the site's, usually auto]",
)

solve_limit_option = click.option(
    "--solve-limit-s",
    type=FiniteRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Time limit per plan.",
)
