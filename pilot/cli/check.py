"""``pilot check``: does a script compute the same on several nodes as on one?"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from pilot.cli.asking import json_option, to_json
from pilot.cli.numbers import FiniteRange
from pilot.cli.script_arguments import for_script, mention_our_options
from pilot.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Verdict:
    """``script_class`` is `equal`, `different by design`, `differs`, `refused`, or `failed` on its own."""

    script_class: str
    text: str
    by_design: list[str] = field(default_factory=list)
    first_difference: str = ""

    @property
    def passed(self) -> bool:
        """Whether the script computes the same on several nodes as on one, apart from differences by design."""
        return self.script_class in ("equal", "different by design")


@click.command("check", context_settings={"allow_interspersed_args": False})
@click.option(
    "--python", metavar="PATH", default=sys.executable, help="Interpreter for the script (default: this one)."
)
@click.option(
    "--limit-s",
    type=FiniteRange(min=0),
    default=600.0,
    show_default=True,
    help="Timeout for each of the two runs: on one process, and on two ranks.",
)
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@json_option
def command(script: Path, arguments: tuple[str, ...], python: str, limit_s: float, as_json: bool) -> int:
    """Check that SCRIPT ARGUMENTS computes the same on several nodes as on one. Exit status 1 if it does not.

    Runs one global batch on one process and on two emulated ranks, compares the gradients, and names the first that
    differs. This finds silent mistakes, such as a loss that is a sum or that mixes the samples of a batch. Dropout and
    batch norm differ between ranks by design: they are disabled and listed. The script runs three times, each time up
    to its first step; nothing is saved.

    \b
    Example:
      pilot check examples/digits_cnn.py --epochs 1
    """
    if not script.is_file():
        raise UserError(f"cannot read the script {script}: not a file")
    mention_our_options(script, arguments)
    verdict = check(script, for_script(arguments), python, limit_s)
    if as_json:
        click.echo(to_json({"passed": verdict.passed} | msgspec.to_builtins(verdict)))
    else:
        click.echo(f"{verdict.script_class}: {verdict.text}")
        if verdict.by_design:
            click.echo(f"these differ by design: {', '.join(verdict.by_design)}")
    return 0 if verdict.passed else 1


def check(script: Path, arguments: Sequence[str], python: str, limit_s: float) -> Verdict:
    """Run the script as one process, then as two ranks."""
    from pilot.cli.check_runs import Failed, Runs

    with tempfile.TemporaryDirectory(prefix="pilot-check-") as folder:
        runs = Runs(Path(folder), [python, "-P", "-m", "pilot.train.check_script", str(script), *arguments], limit_s)
        try:
            runs.play(1)
            (seen, _) = runs.play(2)
        except Failed as failed:
            return Verdict("refused" if failed.refused else "failed", str(failed))
    largest = max((row.alone for row in seen.compared), default=0.0)
    first = next((row for row in seen.compared if row.differs(largest)), None)
    if first is not None:
        return Verdict("differs", f"the gradient of {first.name}: {first.in_words()}", seen.by_design, first.name)
    text = f"{len(seen.compared)} gradients of {seen.samples} samples are the same on one process and on two ranks"
    if not seen.by_design:
        return Verdict("equal", text)
    return Verdict("different by design", f"otherwise, {text}", seen.by_design)
