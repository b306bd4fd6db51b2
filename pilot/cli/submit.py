"""``pilot submit``: hand in a training script."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from pilot.cli.asking import find_run_dir, json_option, pool_at, run_dir_option, to_json
from pilot.cli.numbers import Count, FiniteRange, Sizes
from pilot.core.errors import UserError
from pilot.core.ids import TrainerId
from pilot.core.run_identity import acceptable
from pilot.core.sizes import check_sizes
from pilot.core.spec import Profiling
from pilot.io.files import read_regular
from pilot.io.rundir import RunDir
from pilot.io.script_code import Code, collect
from pilot.io.submission import LaunchSpec, Start, Submission

MOST_SCRIPT_BYTES = 16 * 1024 * 1024
"""A larger script is none: something else was named."""

READ_AT_START = ("LD_", "PYTHON")
"""Variables that begin so are of no use to a process that runs already."""


@click.command("submit", context_settings={"allow_interspersed_args": False})
@click.option("--name", help="What to call the trainer (default: t1, t2, …).")
@click.option("--replace", is_flag=True, help="Take the place of a trainer of this name that has ended; it is removed.")
@click.option("--min-nodes", type=Count(), help="It does not run on fewer nodes.  [default: 1]")
@click.option("--max-nodes", type=Count(), help="It does not run on more nodes.  [default: 64]")
@click.option(
    "--sizes", type=Sizes(), metavar="N,N,...", help="It runs on so many nodes only, as 1,2,4,8.  [default: all]"
)
@click.option("--curve", type=click.Path(path_type=Path), help="Scaling curve: lines of nodes and samples/s.")
@click.option("--fixed-curve", is_flag=True, help="Plan with the given curve, whatever is measured.")
@click.option(
    "--profile",
    type=click.Choice([mode.value for mode in Profiling]),
    help="Measure its speed on a few node counts first: auto on two, inverse on each, from the largest down."
    "  [default: auto; with --ddp never]",
)
@click.option("--reprofile", is_flag=True, default=None, help="Measure it so although its --curve is known.")
@click.option("--rescale-up-s", type=FiniteRange(min=0), help="What adding nodes costs, until measured.")
@click.option(
    "--rescale-down-s",
    type=FiniteRange(min=0),
    help="What giving back nodes costs, until measured.",
)
@click.option(
    "--priority", type=FiniteRange(min=0, min_open=True), help="Weight for the objective 'priority'.  [default: 1]"
)
@click.option(
    "--budget",
    "budget_node_hours",
    type=FiniteRange(min=0, min_open=True),
    help="Node-hours, as the site charges them, after which it stops (default: no limit).",
)
@click.option("--python", default=sys.executable, help="Interpreter for the script (default: this one).")
@click.option(
    "--env", "named", multiple=True, metavar="NAME[=VALUE]", help="Set this variable, or hand on its value. Repeatable."
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Of its generators.  [default: from its name]")
@click.option(
    "--from", "start", metavar="NAME|PATH", help="Start from this trainer's, or this, checkpoint.  [default: scratch]"
)
@click.option(
    "--accept-changes",
    metavar="WHAT",
    help="Go on from a checkpoint of another seed, dataset, batches, rules, options.",
)
@click.option("--checkpoints-kept", type=Count(), help="Keep so many, the newest.  [default: as the site says]")
@click.option(
    "--live", is_flag=True, help="Run the script from where it is; once it is edited no node more can start it."
)
@click.option(
    "--after-loop-s",
    type=FiniteRange(min=0, min_open=True),
    help="So long the script may go on after its loop, on rank 0.  [default: 600]",
)
@click.option(
    "--patience-s",
    type=FiniteRange(min=0, min_open=True),
    help="A process that does nothing while others wait for it so long starts anew.  [default: 300]",
)
@click.option("--ddp", is_flag=True, help="SCRIPT is one for torchrun (DistributedDataParallel), without a session.")
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@run_dir_option
@json_option
def command(
    run_dir: Path | None,
    as_json: bool,
    script: Path,
    arguments: tuple[str, ...],
    curve: Path | None,
    python: str,
    named: tuple[str, ...],
    seed: int | None,
    start: str | None,
    accept_changes: str | None,
    checkpoints_kept: int | None,
    live: bool,
    ddp: bool,
    profile: str | None,
    **planning: Any,
) -> None:
    """Submit SCRIPT, which uses pilot.train, as an elastic trainer; ARGS are its own.

    Only the script is required: what is not given has a default or is measured. Directory, interpreter and the named
    variables are recorded with it, and its code is taken along as it is now: the script and what it imports of its own,
    beside it or from PYTHONPATH. Data and installed packages stay where they are.

    A script for torchrun runs as it is with --ddp: it is started anew at each change, and goes on from what it saved in
    the file that PILOT_CHECKPOINT names.

    \b
    Examples:
      pilot submit --name cnn --max-nodes 8 --env DATA_DIR examples/digits_cnn.py --epochs 20
      pilot submit --ddp train_ddp.py --epochs 20
      pilot submit --name more --from cnn examples/digits_cnn.py --epochs 40
    """
    if ddp and (start is not None or accept_changes is not None):
        raise UserError("--ddp: --from and --accept-changes are for scripts that have a session")
    launched = launch(script, list(arguments), python, named, seed, accept_changes, checkpoints_kept, ddp=ddp)
    launched, code = (launched, None) if live else with_code(launched)
    submission = Submission(
        launch=launched,
        curve=_points(curve) if curve is not None else None,
        profile=Profiling(profile or ("never" if ddp else "auto")),
        **_within_bounds({name: value for name, value in planning.items() if value is not None}),
    )
    root = find_run_dir(run_dir)
    if start is not None:
        submission = msgspec.structs.replace(submission, start=_start(root, start))
    told = pool_at(root).submit(submission)
    if as_json:
        click.echo(to_json(told))
        return
    click.echo(f"submitted {told.trainer}; its files: {told.directory}")
    for sentence in code.sentences() if code is not None else ():
        click.echo(sentence)


def with_code(launched: LaunchSpec) -> tuple[LaunchSpec, Code]:
    """Have the script's code taken along as it is now; what that is."""
    added = filter(None, launched.environment.get("PYTHONPATH", "").split(os.pathsep))
    script = Path(launched.script)
    code = collect(script, _content(script), [Path(launched.cwd, folder) for folder in added])
    return msgspec.structs.replace(launched, code=code.packed()), code


def _start(root: Path, given: str) -> Start:
    """The newest checkpoint of the trainer of this name, also of an earlier pool of ``root``, or the one at this path.

    Whose it is does not matter, for it is named; that it is whole does.
    """
    from pilot.checkpoint import store
    from pilot.checkpoint.describe import describe

    folder = RunDir(root).trainer(TrainerId(given)) / "checkpoints"
    place = folder if Path(given).name == given and folder.is_dir() else Path(given)
    if not place.exists():
        raise UserError(f"--from {given}: there is no trainer of this name in {root}, and no such file")
    entries = [entry.path for entry in store.listing(place)] if place.is_dir() else [place]
    if not entries:
        raise UserError(f"--from {given}: there is no checkpoint in {place}")
    path = next((path for path in entries if not store.verify(path)), None)
    if path is None:
        raise UserError(f"--from {given}: {store.verify(entries[0])[0]}")
    found = describe(path)
    parts = [file for file in found.files if file != path]
    return Start([str(file.absolute()) for file in (path, *parts)], found.generation)


def launch_again(root: Path, trainer: str) -> LaunchSpec:
    """How a trainer of the pool in ``root`` was started, with its script as it is now, and its code if that was taken
    along.
    """
    path = RunDir(root).trainer(TrainerId(trainer)) / "spec.json"
    if Path(trainer).name != trainer or not path.exists():
        raise UserError(f"no trainer named {trainer!r} in {root}; see pilot ls --all")
    try:
        earlier = msgspec.json.decode(read_regular(path, MOST_SCRIPT_BYTES), type=LaunchSpec)
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"cannot read how {trainer} was submitted from {path}: {error}") from None
    launched = msgspec.structs.replace(earlier, script_sha256=_digest(Path(earlier.script), earlier.python))
    return with_code(launched)[0] if launched.code_taken else launched


def _digest(script: Path, python: str) -> str:
    """By which nodes know the script. What ``python`` cannot even read is refused, where it runs this command, too."""
    content = _content(script)
    try:
        str(script.absolute()).encode()
        if python == sys.executable:
            ast.parse(content)
    except UnicodeEncodeError:
        raise UserError(f"the path of the script is not UTF-8: {str(script)!a}; rename it") from None
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise UserError(f"{script}{line}: {getattr(error, 'msg', error)}") from None
    return hashlib.sha256(content).hexdigest()


def _content(script: Path) -> bytes:
    try:
        return read_regular(script, MOST_SCRIPT_BYTES)
    except OSError as error:
        raise UserError(f"cannot read the script {script}: {error.strerror}") from None


def launch(
    script: Path,
    arguments: list[str],
    python: str,
    named: tuple[str, ...],
    seed: int | None = None,
    accepted: str | None = None,
    checkpoints_kept: int | None = None,
    *,
    ddp: bool = False,
) -> LaunchSpec:
    """How the script is started: what a node needs to know to start the very same thing."""
    digest, cwd = _digest(script, python), _here()
    if shutil.which(python) is None:
        raise UserError(f"--python: there is no interpreter {python} on this host")
    seeded = {} if seed is None else {"PILOT_SEED": str(seed)}
    if accepted is not None:
        acceptable(accepted)  # said here too, before anything is sent
        seeded["PILOT_ACCEPT_CHANGES"] = accepted
    return LaunchSpec(
        script=str(script.absolute()),
        script_sha256=digest,
        arguments=arguments,
        cwd=cwd,
        python=python,
        environment=dict(map(_variable, named)) | seeded,
        umask=_umask(),
        checkpoints_kept=checkpoints_kept,
        ddp=ddp,
    )


def _here() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise UserError("the directory that you are in has been removed; cd to one that is there") from None


def _umask() -> int:
    """Ours: it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _variable(named: str) -> tuple[str, str]:
    """``NAME=VALUE``, or ``NAME`` with the value that it has here."""
    name, given, value = named.partition("=")
    if not name or "\0" in named:
        raise UserError(f"--env {named!r}: give NAME or NAME=VALUE")
    if name.startswith(READ_AT_START) and name != "PYTHONPATH":
        raise UserError(
            f"--env {name}: it is read when a program starts, and the interpreter runs before your script is known;"
            " set it in the site's prologue, or in a wrapper given with --python"
        )
    if given:
        return name, value
    if name not in os.environ:
        raise UserError(f"--env {name}: there is no such variable in your environment; {name}=VALUE sets it")
    return name, os.environ[name]


def _within_bounds(planning: dict[str, Any]) -> dict[str, Any]:
    """Said here too, before anything is sent: the coordinator would say the same. Sizes are their own bounds."""
    sizes = planning.get("sizes")
    if sizes:
        planning = {"min_nodes": sizes[0], "max_nodes": sizes[-1]} | planning
    least, most = planning.get("min_nodes"), planning.get("max_nodes")
    if least is not None and most is not None and least > most:
        raise UserError(f"--min-nodes {least} is greater than --max-nodes {most}")
    if sizes:
        check_sizes(sizes, planning["min_nodes"], planning["max_nodes"])
    return planning


def _points(path: Path) -> list[tuple[float, float]]:
    from pilot.io.curve_file import read_curve

    curve = read_curve(path)
    return list(zip(curve.nodes, curve.per_s, strict=True))
