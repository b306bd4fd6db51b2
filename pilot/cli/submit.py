"""``pilot submit`` and ``pilot resume``: send a training script to the pool."""

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

from pilot.cli import options
from pilot.cli.asking import find_run_dir, in_running_pool, pool_at, run_dir_option
from pilot.core.errors import CheckpointError, Unreadable, UserError
from pilot.core.ids import NO_UID, TrainerId
from pilot.core.trainer.spec import Profiling
from pilot.host.files import read_regular, umask
from pilot.host.private_folder import shown
from pilot.protocol.run_identity import ACCEPT, acceptable
from pilot.rundir.rundir import RunDir
from pilot.submission.script_code import Code, collect
from pilot.submission.submission import LaunchSpec, Start, Submission, read_curve

MOST_SCRIPT_BYTES = 16 * 1024 * 1024
"""A larger file is not a script."""

READ_AT_START = ("LD_", "PYTHON")
"""Variables with these prefixes have no effect once a process is running."""


accept_option = click.option(
    "--accept-changes",
    metavar="WHAT",
    help="Continue from a checkpoint even if these differ: seed, dataset, batches, rules, options, fewer (epochs),"
    " gradients.",
)


@click.command("submit", context_settings={"allow_interspersed_args": False})
@click.option("--name", metavar="NAME", help="The trainer's name (default: t1, t2, …).")
@click.option("--replace", is_flag=True, help="Remove an ended trainer of the same name first.")
@click.option("--min-nodes", type=options.Count(), help="Fewest nodes to run on.  [default: 1]")
@click.option("--max-nodes", type=options.Count(), help="Most nodes to run on.  [default: 64]")
@click.option(
    "--sizes",
    type=options.Sizes(),
    metavar="N,N,...",
    help="Run on these node counts only, e.g. 1,2,4,8.  [default: all]",
)
@click.option(
    "--curve",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Scaling curve: a file with lines of nodes and samples/s.",
)
@click.option("--fixed-curve", is_flag=True, help="Always plan with the given curve, ignoring measurements.")
@click.option(
    "--profile",
    type=click.Choice(Profiling, case_sensitive=False),
    help="Measure the trainer's speed first: auto on the one or two most informative node counts, if worthwhile; "
    "inverse on every count, from the largest down.  [default: auto; with --ddp never]",
)
@click.option("--reprofile", is_flag=True, default=None, help="Profile even though --curve is given.")
@click.option(
    "--rescale-up-s", type=options.FiniteRange(min=0), help="Pause when nodes are added, assumed until it is measured."
)
@click.option(
    "--rescale-down-s",
    type=options.FiniteRange(min=0),
    help="Pause when nodes are taken away, assumed until it is measured.",
)
@click.option("--priority", type=options.POSITIVE, help="Weight for the objective 'priority'.  [default: 1]")
@click.option(
    "--budget",
    "budget_node_hours",
    type=options.POSITIVE,
    metavar="NODE-HOURS",
    help="Node-hours, as charged by the site, after which the trainer stops (default: no limit).",
)
@options.python_option
@options.env_option
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    metavar="N",
    help="Seed of the random generators.  [default: from the trainer's name]",
)
@click.option(
    "--from",
    "start",
    metavar="NAME|PATH",
    help="Start from the newest checkpoint of this trainer, or from this file.  [default: scratch]",
)
@accept_option
@click.option("--checkpoints-kept", type=options.Count(), help="How many checkpoints to keep.  [default: the site's]")
@options.check_option
@click.option(
    "--live",
    is_flag=True,
    help="Run the script and its modules in place instead of a copy. Once they are edited, no further node can join.",
)
@click.option(
    "--warm-up-s",
    type=options.POSITIVE,
    help="How long SCRIPT may take on a node until its training loop begins.  [default: 900]",
)
@click.option(
    "--after-loop-s",
    type=options.POSITIVE,
    help="How long rank 0 may run code after the training loop.  [default: 600]",
)
@click.option(
    "--patience-s",
    type=options.POSITIVE,
    help="Restart a process that has been idle this long while others wait for it.  [default: 300]",
)
@click.option(
    "--ddp", is_flag=True, help="SCRIPT is written for torchrun (DistributedDataParallel), without pilot.train."
)
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@run_dir_option
@options.answers
def command(
    run_dir: Path | None,
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
    profile: Profiling | None,
    **planning: Any,
) -> tuple[Any, ...]:
    """Submit SCRIPT, which uses pilot.train, as an elastic trainer. ARGUMENTS are passed to it.

    Options of this command go before SCRIPT: what follows it, also after a --, is passed to it.

    Only the script is required; everything else has a default or is measured. The working directory, the interpreter,
    the variables given with --env and a copy of the code (the Python files below the script's folder, and what it
    imports from PYTHONPATH or from packages installed in place) are recorded now. Data and other packages are not
    copied.

    With --ddp, a script for torchrun runs unchanged: it is restarted whenever its nodes change, and resumes from what
    it saved in the file named by PILOT_CHECKPOINT.

    \b
    Examples:
      pilot submit --name cnn --max-nodes 8 --env DATA_DIR examples/digits_cnn.py --epochs 20
      pilot submit --ddp train_ddp.py --epochs 20
      pilot submit --name more --from cnn examples/digits_cnn.py --epochs 40
    """
    if ddp and (start is not None or accept_changes is not None):
        raise UserError("--ddp: --from and --accept-changes need a script that uses pilot.train")
    launched = launch(
        script, options.for_script(arguments), python, named, seed, accept_changes, checkpoints_kept, ddp=ddp
    )
    launched, code = (launched, None) if live else with_code(launched)
    sizes = planning["sizes"]
    bounds = {"min_nodes": sizes[0], "max_nodes": sizes[-1]} if sizes else {}
    given_curve = read_curve(curve) if curve is not None else None
    submission = Submission(
        launch=launched,
        curve=list(zip(given_curve.nodes, given_curve.per_s, strict=True)) if given_curve is not None else None,
        profile=profile or (Profiling.NEVER if ddp else Profiling.AUTO),
        **bounds | {name: value for name, value in planning.items() if value is not None},
    )
    submission.spec(TrainerId(submission.name or "new"), NO_UID)  # refuses here what the coordinator would refuse
    root = find_run_dir(run_dir)
    if start is not None:
        submission = msgspec.structs.replace(submission, start=_start(root, start))
    answer = pool_at(root).submit(submission)
    options.mention_our_options(script, arguments)
    copied = code.sentences(ddp=ddp) if code is not None else []
    return answer, "\n".join([f"submitted {answer.trainer}; its files: {answer.directory}", *copied])


@click.command("resume")
@options.trainer_argument
@click.option(
    "--budget",
    type=options.POSITIVE,
    metavar="NODE-HOURS",
    help="Node-hours it may use in total, as charged by the site (default: as submitted).",
)
@click.option(
    "--from-scratch",
    is_flag=True,
    help="Start again as when it was submitted. Its checkpoints so far are not used; they stay until you remove them.",
)
@accept_option
@in_running_pool
@options.answers
def resume(
    root: Path, trainer: str, budget: float | None, from_scratch: bool, accept_changes: str | None
) -> tuple[Any, ...]:
    """Continue TRAINER, which failed, was cancelled or was stopped, from its newest checkpoint, under the same name and
    with the same logs. Its script is read again, so that a fix takes effect; arguments and environment stay as
    submitted. With --from-scratch, TRAINER may also be held because its checkpoints cannot be loaded.

    \b
    Examples:
      pilot resume vit
      pilot resume vit --budget 40
      pilot resume vit --from-scratch
      pilot resume vit --accept-changes options
    """
    launched = launch_again(root, trainer, accept_changes)
    answer = pool_at(root).resume(trainer, launched, budget, from_scratch=from_scratch)
    return answer, f"{answer.trainer} resumed; it is {answer.phase}"


def with_code(launched: LaunchSpec) -> tuple[LaunchSpec, Code]:
    """Record a copy of the script's code as it is now; also returns what was copied."""
    added = filter(None, launched.environment.get("PYTHONPATH", "").split(os.pathsep))
    script = Path(launched.script)
    code = collect(script, _content(script), [Path(launched.cwd, folder) for folder in added], launched.python)
    return msgspec.structs.replace(launched, code=code.packed()), code


def _start(root: Path, given: str) -> Start:
    """The newest intact checkpoint of the trainer with this name (also from an earlier pool in ``root``), or the one at
    this path.

    Any trainer's checkpoint will do, because the user named it, but it must verify. If one cannot be read now, an older
    one does not take its place.
    """
    from pilot.checkpoint.own_directory import held_here

    folder = RunDir(root).trainer(TrainerId(given)) / "checkpoints"
    try:
        if Path(given).name == given and folder.is_dir():
            with held_here(folder) as place:
                return _start_at(place, given)
        if Path(given).exists():
            return _start_at(Path(given), given)
    except Unreadable as error:
        raise UserError(f"--from {given}: {error}; try again when it can be read") from None
    except CheckpointError as error:
        raise UserError(f"--from {given}: {error}") from None
    raise UserError(f"--from {given}: no trainer of this name in {root}, and no such file")


def _start_at(place: Path, given: str) -> Start:
    from pilot.checkpoint import store
    from pilot.checkpoint.export import describe

    entries = [entry.path for entry in store.listing(place)] if place.is_dir() else [place]
    if not entries:
        raise UserError(f"--from {given}: no checkpoint in {shown(place)}")
    path = next((path for path in entries if not store.verify(path)), None)
    if path is None:
        raise UserError(f"--from {given}: {store.verify(entries[0])[0]}")
    found = describe(path)
    parts = [file for file in found.files if file != path]
    return Start([str(shown(file).absolute()) for file in (path, *parts)], found.generation)


def accepting(kinds: str | None) -> dict[str, str]:
    """The variable that accepts ``kinds`` of changes, if any; they are checked before anything is sent."""
    if kinds is None:
        return {}
    acceptable(kinds)
    return {ACCEPT: kinds}


def launch_again(root: Path, trainer: str, accepted: str | None = None) -> LaunchSpec:
    """The launch of a trainer of the pool in ``root``, with its script as it is now, and a fresh copy of its code if
    one was recorded. ``accepted``: changes that are accepted from now on (None: as before).
    """
    path = RunDir(root).trainer(TrainerId(trainer)) / "spec.json"
    if Path(trainer).name != trainer or not path.exists():
        raise UserError(f"no trainer named {trainer!r} in {root}; see pilot ls --all")
    try:
        earlier = msgspec.json.decode(read_regular(path, MOST_SCRIPT_BYTES), type=LaunchSpec)
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"cannot read the submission of {trainer} from {path}: {error}") from None
    if accepted is not None and earlier.ddp:
        raise UserError(f"--accept-changes: {trainer} does not use pilot.train")
    launched = msgspec.structs.replace(
        earlier,
        script_sha256=_digest(Path(earlier.script), earlier.python),
        environment=earlier.environment | accepting(accepted),
    )
    return with_code(launched)[0] if launched.code_sha256 else launched


def _digest(script: Path, python: str) -> str:
    """The digest by which nodes recognise the script. A syntax error is refused here, if ``python`` is this
    interpreter."""
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
    """The launch of the script: everything that a node needs to start it in exactly the same way."""
    digest = _digest(script, python)
    try:
        cwd = str(Path.cwd())
    except FileNotFoundError:
        raise UserError("the directory that you are in has been removed; cd to one that is there") from None
    if shutil.which(python) is None:
        raise UserError(f"--python: no interpreter {python} on this host")
    ours = accepting(accepted) | ({} if seed is None else {"PILOT_SEED": str(seed)})
    return LaunchSpec(
        script=str(script.absolute()),
        script_sha256=digest,
        arguments=arguments,
        cwd=cwd,
        python=python,
        environment=dict(map(_variable, named)) | ours,
        umask=umask(),
        checkpoints_kept=checkpoints_kept,
        ddp=ddp,
    )


def _variable(named: str) -> tuple[str, str]:
    """``NAME=VALUE``, or ``NAME`` with its current value."""
    name, given, value = named.partition("=")
    if not name or "\0" in named:
        raise UserError(f"--env {named!r}: give NAME or NAME=VALUE")
    if name.startswith(READ_AT_START) and name != "PYTHONPATH":
        raise UserError(
            f"--env {name}: this variable is read when the interpreter starts, which is before your script is known;"
            " set it in the site's prologue, or in a wrapper given with --python"
        )
    if given:
        return name, value
    if name not in os.environ:
        raise UserError(f"--env {name}: not set in your environment; use {name}=VALUE")
    return name, os.environ[name]
