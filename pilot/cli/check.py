"""``pilot check``: does a script train the same on changing nodes as undisturbed?"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from pilot.cli.options import Count, FiniteRange, for_script, json_option, mention_our_options, python_option, to_json
from pilot.core.errors import UserError
from pilot.core.pool.evidence import headline, last_words

_START_S = 90.0


@click.command("check", context_settings={"allow_interspersed_args": False})
@python_option
@click.option("--epochs", type=Count(), default=3, help="Most epochs that are run.")
@click.option("--steps", type=Count(2), default=6, help="Most steps of each that are run.")
@click.option("--limit-s", type=FiniteRange(min=0), default=600.0, help="Time limit for the check.")
@click.option("--writes", is_flag=True, help="Run the script even if its output cannot be kept out of your files.")
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
    middle of a step, and resume. Compares the trained state after each step, and names the first case that differs,
    the difference, and its usual cause. Dropout and batch norm differ between nodes by design: they are
    disabled, and listed. The script sees your files, but what it writes is thrown away, and it has no network.

    \b
    Example:
      pilot check examples/digits_cnn.py --epochs 1
    """
    from pilot.agent.fork_server import HASHES, THREAD_VARIABLES

    until_s = time.monotonic() + limit_s
    if not script.is_file():
        raise UserError(f"cannot read the script {script}: not a file")
    if shutil.which(python) is None:
        raise UserError(f"cannot run {python}: not an interpreter")
    mention_our_options(script, arguments)
    with tempfile.TemporaryDirectory(prefix="pilot-check-") as folder:
        job = {"script": str(script), "arguments": for_script(arguments), "epochs": epochs, "steps": steps}
        job |= {"until_s": until_s, "folder": folder}
        environment = HASHES | dict(os.environ) | dict.fromkeys(THREAD_VARIABLES, "1")  # as on the nodes of a trainer
        verdict, why = _run(python, environment, job | {"covered": True}, as_json)
        if not verdict and writes:
            verdict, why = _run(python, environment, job | {"covered": False}, as_json)
    if not verdict:
        raise UserError(
            f"this machine makes no sandbox in which the script would not really write its files ({why}): run the check"
            " elsewhere, or with --writes if that does no harm"
        )
    if as_json:
        click.echo(to_json(verdict))
    else:
        click.echo(f"{verdict['script_class']}: {verdict['text']}")
        if verdict["by_design"]:
            click.echo(f"these differ by design: {', '.join(verdict['by_design'])}")
    return 0 if verdict["passed"] else 1


def _run(python: str, environment: Mapping[str, str], job: dict[str, Any], quiet: bool) -> tuple[dict[str, Any], str]:
    """Return the verdict of a process that checks the script; without one, nothing and the reason."""
    from pilot.host import proc, sandbox

    program = [python, "-P", "-m", "pilot.train.check.program"]
    log = Path(job["folder"], "program")
    try:
        with log.open("wb") as errors:
            process = subprocess.Popen(
                sandbox.command(program) if job["covered"] else program,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**environment, "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"},
                start_new_session=True,
            )
    except OSError as error:
        return {}, str(error)
    assert process.stdin is not None
    assert process.stdout is not None
    overdue = threading.Timer(_START_S, process.kill)
    overdue.start()
    why = ""
    try:
        with suppress(BrokenPipeError), process.stdin as given:
            given.write(json.dumps(job).encode())
        for line in process.stdout:
            overdue.cancel()
            match json.loads(line):
                case {"progress": text} if not quiet:
                    click.echo(f"checking: {text}", err=True)
                case {"verdict": verdict}:
                    return verdict, ""
                case {"unfit": why}:
                    break
    finally:
        overdue.cancel()
        proc.kill([*proc.tree(process.pid), *proc.session(process.pid)])
        process.stdout.close()
        process.wait()
    output = log.read_text(errors="replace")
    if "Traceback" in output:
        raise UserError(f"{python} cannot run the check: {headline(last_words(output))}")
    return {}, why or output.strip() or f"its process ended with status {process.returncode}"
