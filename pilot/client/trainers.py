"""Trainers of a pool, for the CLI and for Python programs: submit one, wait for it, read its output, end it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict, Unpack

import msgspec

from pilot.client.launching import launch, with_code
from pilot.client.merged_logs import MergedLogs, text_of
from pilot.client.output import log_folder, prefixed, row_of, whose
from pilot.client.pools import REPLY_TIMEOUT_S, find_run_dir, patiently, pool_at
from pilot.core.errors import CheckpointError, PilotError, Unreadable, UserError
from pilot.core.ids import NO_UID, TrainerId
from pilot.core.trainer.spec import Checking, Profiling
from pilot.core.trainer.trainer import AT_REST, Phase
from pilot.host.private_folder import shown
from pilot.protocol.pool_status import TrainerStatus
from pilot.protocol.requests import LONGEST_WAIT_S, Phases
from pilot.rundir.rundir import RunDir
from pilot.site.site import BetweenNodes
from pilot.submission.script_code import Code
from pilot.submission.seldom import DiLoCo
from pilot.submission.submission import LaunchSpec, Start, Submission, read_curve


class Options(TypedDict, total=False):
    """The options of a new trainer, as ``pilot submit --help`` explains them; None: its default."""

    name: str | None
    run_dir: str | PathLike[str] | None  #: the pool's run directory
    replace: bool
    min_nodes: int | None
    max_nodes: int | None
    sizes: Sequence[int] | None
    nodes_per_replica: int | None
    curve: str | PathLike[str] | None
    fixed_curve: bool
    profile: Profiling | str | None
    reprofile: bool | None
    rescale_up_s: float | None
    rescale_down_s: float | None
    priority: float | None
    types: Sequence[str] | None
    memory_gb: float | None
    budget_node_hours: float | None
    python: str | PathLike[str] | None
    env: Mapping[str, str] | Iterable[str] | None  #: values by name; or strings, each NAME=VALUE or NAME
    seed: int | None
    start: str | PathLike[str] | None  #: ``--from``
    accept_changes: str | None
    checkpoints_kept: int | None
    check: Checking | str | None
    live: bool
    ddp: bool
    sync: DiLoCo | str | None
    between_nodes: BetweenNodes | None
    warm_up_s: float | None
    after_loop_s: float | None
    patience_s: float | None


class Trainer:
    """A trainer of a pool, by its ``name``. The pool is the one that is up, or that of ``run_dir``. What the CLI would
    refuse is a :class:`UserError` with the same message; without an answer of the pool, there is a :class:`PilotError`.
    """

    def __init__(self, name: str, run_dir: str | PathLike[str] | None = None) -> None:
        self.name, self.run_dir = name, find_run_dir(None if run_dir is None else Path(run_dir))

    def __repr__(self) -> str:
        return f"Trainer({self.name!r}, {str(self.run_dir)!r})"

    def status(self) -> TrainerStatus:
        """Return its ``phase``, ``step``, ``metrics`` and more (docs/reference/json.md). Its pool may be down."""
        row = patiently(lambda: row_of(self.run_dir, self.name))
        if row is None:
            raise UserError(f"no trainer named {self.name!r} in {self.run_dir}; see pilot ls --all")
        return row

    def wait(self, limit_s: float | None = None) -> Phase:
        """Wait until it has ended; return how: ``"finished"``, ``"failed"``, ``"cancelled"`` or ``"stopped"``.
        :class:`PilotError` if it has not after ``limit_s``.
        """
        return wait_for(self.run_dir, [self.name], limit_s).trainers[self.name]

    def logs(self, *, every_rank: bool = False) -> str:
        """Return the output of its script so far, of rank 0 or of ``every_rank``: each line with its node and [rank],
        in chronological order, as ``pilot logs`` prints it.
        """
        with log_folder(self.run_dir, self.name) as folder:
            pieces = MergedLogs(folder, every_rank=every_rank).grown()
            lines = [prefixed(whose(piece), text) for piece in pieces if (text := text_of(piece))]
        return b"".join(lines).decode(errors="replace")

    def cancel(self) -> None:
        """End it. Its checkpoints and logs stay; :class:`UserError` if it has ended."""
        pool_at(self.run_dir).cancel(self.name)


def submit(script: str | PathLike[str], arguments: Sequence[object] = (), **options: Unpack[Options]) -> Trainer:
    """Submit ``script``, with these command-line ``arguments``, as ``pilot submit`` does. Returns at once.

    Raises as :class:`Trainer` does.
    """
    for name, given in (("arguments", arguments), ("env", options.get("env"))):
        if isinstance(given, str | bytes):
            raise UserError(f"{name}: give a list, one item for each; got {given!r}")
    root, submission, _ = prepared(Path(script), list(map(str, arguments)), **options)
    return Trainer(pool_at(root).submit(submission).trainer, root)


def prepared(script: Path, arguments: list[str], **options: Unpack[Options]) -> tuple[Path, Submission, Code | None]:
    """Return the pool's run directory, what to submit to it, and the copied code (None: it runs in place)."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    run_dir, start, live, ddp = (given.pop(name, None) for name in ("run_dir", "start", "live", "ddp"))
    if ddp and (start is not None or given.keys() & {"accept_changes", "sync", "between_nodes"}):
        only = "--from, --accept-changes, --sync and --between-nodes"
        raise UserError(f"--ddp: {only} need a script that uses pilot.train")
    env = given.pop("env", ())
    launched = launch(
        script,
        arguments,
        str(given.pop("python", sys.executable)),
        [f"{name}={value}" for name, value in env.items()] if isinstance(env, Mapping) else env,
        given.pop("seed", None),
        given.pop("accept_changes", None),
        given.pop("checkpoints_kept", None),
        given.pop("sync", None),
        between_nodes=given.pop("between_nodes", None),
        ddp=bool(ddp),
    )
    launched, code = (launched, None) if live else with_code(launched)
    given.setdefault("profile", Profiling.AUTO)
    submission = _submission(launched, given)
    root = find_run_dir(None if run_dir is None else Path(run_dir))
    if start is not None:
        submission = msgspec.structs.replace(submission, start=_start(root, str(start)))
    return root, submission, code


def _submission(launched: LaunchSpec, given: dict[str, Any]) -> Submission:
    """The submission with the options that were ``given``; refuses what the coordinator would refuse."""
    if "curve" in given:
        curve = read_curve(Path(given["curve"]))
        given["curve"] = list(zip(curve.nodes, curve.per_s, strict=True))
    try:
        plain = msgspec.to_builtins(launched, builtin_types=(bytes,))
        submission = msgspec.convert(given | {"launch": plain}, Submission)
    except msgspec.ValidationError as error:
        raise UserError(f"submit: {error}") from None
    if sizes := submission.sizes:
        bounds = {"min_nodes": sizes[0], "max_nodes": sizes[-1]}
        bounds = {name: bound for name, bound in bounds.items() if name not in given}
        submission = msgspec.structs.replace(submission, **bounds)
    submission.spec(TrainerId(submission.name or "new"), NO_UID)
    return submission


def wait_for(root: Path, trainers: Sequence[str], limit_s: float | None = None) -> Phases:
    """Return the phases of these trainers once all are at rest; :class:`PilotError` (transient) if they are not after
    ``limit_s`` (None: no limit).
    """
    deadline = time.monotonic() + (math.inf if limit_s is None else limit_s)
    answer = _phases(root, trainers, 0.0)
    while not all(phase in AT_REST for phase in answer.trainers.values()):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise PilotError(f"timed out after {limit_s:g} s: {phase_words(answer)}", transient=True)
        answer = patiently(lambda: _phases(root, trainers, min(left_s, LONGEST_WAIT_S)))  # noqa: B023  # called right here
    return answer


def phase_words(answer: Phases, between: str = ", ") -> str:
    """Each trainer with its phase."""
    return between.join(f"{trainer} {phase}" for trainer, phase in answer.trainers.items()) or "no trainer to wait for"


def _phases(root: Path, trainers: Sequence[str], limit_s: float) -> Phases:
    return pool_at(root, timeout_s=2 * REPLY_TIMEOUT_S).wait(list(trainers), limit_s)


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
