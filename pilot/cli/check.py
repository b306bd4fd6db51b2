"""``pilot check``: does a script train the same on changing nodes as undisturbed?"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import click
import msgspec

from pilot.cli.asking import json_option, to_json
from pilot.cli.numbers import Count, FiniteRange
from pilot.cli.script_arguments import for_script, mention_our_options
from pilot.core.errors import UserError


@click.command("check", context_settings={"allow_interspersed_args": False})
@click.option(
    "--python", metavar="PATH", default=sys.executable, help="Interpreter for the script (default: this one)."
)
@click.option("--epochs", type=Count(), default=3, show_default=True, help="Most epochs that are run.")
@click.option("--steps", type=Count(2), default=6, show_default=True, help="Most steps of each that are run.")
@click.option(
    "--limit-s", type=FiniteRange(min=0), default=600.0, show_default=True, help="Time limit for the whole check."
)
@click.option("--writes", is_flag=True, help="Run the script even if what it writes cannot be kept from your files.")
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@json_option
def command(
    script: Path,
    arguments: tuple[str, ...],
    python: str,
    epochs: int,
    steps: int,
    limit_s: float,
    writes: bool,
    as_json: bool,
) -> int:
    """Check that SCRIPT ARGUMENTS trains the same on changing nodes as undisturbed. Exit status 1 if it does not.

    Runs the script for a few short epochs, on the CPU: alone, then on two nodes, with nodes that join, die in the
    middle of a step, and resume. Compares what it has trained after each step, and says in which case it first
    differs, in what, and why that usually is. Dropout and batch norm differ between nodes by design: they are
    disabled, and listed. The script sees your files, but what it writes is thrown away, and it has no network.

    \b
    Example:
      pilot check examples/digits_cnn.py --epochs 1
    """
    from pilot.agent.fork_server import HASHES
    from pilot.train.check import sandbox
    from pilot.train.check.runs import Subject
    from pilot.train.check.verdict import Check

    until_s = time.monotonic() + limit_s
    if not script.is_file():
        raise UserError(f"cannot read the script {script}: not a file")
    if shutil.which(python) is None:
        raise UserError(f"cannot run {python}: not an interpreter")
    mention_our_options(script, arguments)
    with tempfile.TemporaryDirectory(prefix="pilot-check-") as folder:
        covered = sandbox.is_possible(Path(folder))
        if not covered and not writes:
            raise UserError(
                "this machine lets users make no namespaces with overlays, so the script would really write its files:"
                " run the check elsewhere, or with --writes if that does no harm"
            )
        environment = HASHES | dict(os.environ)  # as on the nodes of a trainer
        subject = Subject(str(script), for_script(arguments), python, environment, Path(folder), covered, until_s)
        verdict = Check(subject, epochs, steps, (lambda _text: None) if as_json else _show_progress).verdict()
    if as_json:
        told = (
            {"passed": verdict.passed} | msgspec.to_builtins(verdict) | {"files": dict(sorted(subject.files.items()))}
        )
        click.echo(to_json(told))
    else:
        click.echo(f"{verdict.script_class}: {verdict.text}")
        if verdict.by_design:
            click.echo(f"these differ by design: {', '.join(verdict.by_design)}")
    return 0 if verdict.passed else 1


def _show_progress(text: str) -> None:
    click.echo(f"checking: {text}", err=True)
