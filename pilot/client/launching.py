"""How the script of a trainer is started: everything that a node needs for it, and a copy of its code."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from pilot.core.errors import UserError
from pilot.core.ids import TrainerId
from pilot.host.files import read_regular, umask
from pilot.protocol.run_identity import ACCEPT, acceptable
from pilot.rundir.rundir import RunDir
from pilot.site.site import BetweenNodes
from pilot.submission import seldom
from pilot.submission.script_code import Code, collect
from pilot.submission.submission import LaunchSpec

SEED_MAX = 2**63 - 1

MOST_SCRIPT_BYTES = 16 * 1024 * 1024
"""A larger file is not a script."""

READ_AT_START = ("LD_", "PYTHON")
"""Variables with these prefixes have no effect once a process is running."""


def launch(
    script: Path,
    arguments: list[str],
    python: str,
    named: Iterable[str],
    seed: int | None = None,
    accepted: str | None = None,
    checkpoints_kept: int | None = None,
    sync: seldom.DiLoCo | str | None = None,
    *,
    between_nodes: BetweenNodes | None = None,
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
    if seed is not None and not (isinstance(seed, int) and 0 <= seed <= SEED_MAX):
        raise UserError(f"--seed: give an integer from 0 to {SEED_MAX}, not {seed!r}")
    if sync is not None and between_nodes not in (None, "mpi"):
        raise UserError(f"--between-nodes {between_nodes}: with --sync, nodes exchange parameters over MPI")
    ours = accepting(accepted) | ({} if seed is None else {"PILOT_SEED": str(seed)})
    ours |= {} if sync is None else {seldom.SYNC: str(seldom.parsed(str(sync)))}
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
        between_nodes=between_nodes,
    )


def with_code(launched: LaunchSpec) -> tuple[LaunchSpec, Code]:
    """Record a copy of the script's code as it is now; also returns what was copied."""
    added = filter(None, launched.environment.get("PYTHONPATH", "").split(os.pathsep))
    script = Path(launched.script)
    code = collect(script, _content(script), [Path(launched.cwd, folder) for folder in added], launched.python)
    return msgspec.structs.replace(launched, code=code.packed()), code


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


def accepting(kinds: str | None) -> dict[str, str]:
    """The variable that accepts ``kinds`` of changes, if any; they are checked before anything is sent."""
    if kinds is None:
        return {}
    acceptable(kinds)
    return {ACCEPT: kinds}


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
