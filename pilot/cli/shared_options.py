"""Options that several commands have."""

from __future__ import annotations

import sys

import click

from pilot.cli.numbers import FiniteRange

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

solve_limit_option = click.option(
    "--solve-limit-s",
    type=FiniteRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Time limit per plan.",
)
