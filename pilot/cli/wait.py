"""``pilot wait``: until trainers have ended."""

from __future__ import annotations

import time
from pathlib import Path

import click

from pilot.cli.asking import ENDED, REPLY_TIMEOUT_S, ask, find_run_dir, json_option, run_dir_option, to_json
from pilot.cli.numbers import FiniteRange
from pilot.core.errors import PilotError


@click.command("wait")
@click.argument("trainers", nargs=-1)
@click.option("--limit-s", type=FiniteRange(min=0), help="Give up after so long (default: never).")
@run_dir_option
@json_option
def command(trainers: tuple[str, ...], limit_s: float | None, run_dir: Path | None, as_json: bool) -> int:
    """Wait until TRAINERS (none given: all) have ended. Exit status 1 where one did not finish.

    \b
    Example:
      pilot wait cnn mlp && echo trained
    """
    root = find_run_dir(run_dir)
    deadline = time.monotonic() + limit_s if limit_s is not None else None
    while True:
        phases: dict[str, str] = ask(root, "wait", timeout_s=2 * REPLY_TIMEOUT_S, trainers=list(trainers))
        if all(phase in ENDED for phase in phases.values()):
            break
        if deadline is not None and time.monotonic() > deadline:
            raise PilotError(f"still not ended after {limit_s:g} s: {_line(phases)}", transient=True)
    click.echo(to_json(phases) if as_json else _line(phases))
    return 0 if all(phase == "finished" for phase in phases.values()) else 1


def _line(phases: dict[str, str]) -> str:
    return ", ".join(f"{trainer} {phase}" for trainer, phase in phases.items()) or "no trainers"
