"""A user's submission: the launch of the script, and the trainer's specification for the planner."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from pilot.core.curves.curve import Curve
from pilot.core.errors import UserError
from pilot.core.ids import Generation, TrainerId, TrainerUid
from pilot.core.trainer.spec import Checking, Profiling, TrainerSpec
from pilot.host.files import read_regular
from pilot.site.site import BetweenNodes, Site, SiteMistakes
from pilot.submission import seldom


class LaunchSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The launch of a trainer's training process."""

    script: str  #: absolute path of the training script
    #: of its content, in hex; without a copy of its code, a node that finds different content does not start it
    script_sha256: str
    arguments: list[str]  #: passed to the script
    cwd: str  #: the directory in which it is started
    python: str  #: the interpreter
    environment: dict[str, str]  #: the variables that the user named, with their values
    #: the user's, for files that the script creates; pilot's own files are always private (0077)
    umask: Annotated[int, msgspec.Meta(ge=0, le=0o777)] = 0o077
    #: how many of the newest are kept; None: the site's number
    checkpoints_kept: Annotated[int, msgspec.Meta(ge=1)] | None = None
    ddp: bool = False  #: whether it is a script for ``torchrun``, without a session
    between_nodes: BetweenNodes | None = None  #: how its nodes sum their gradients; None: as at the site
    #: its code (:mod:`pilot.submission.script_code`), packed; only until it is stored in the trainer's folder
    code: bytes = b""
    #: of the stored copy of the code, in hex: workers run nothing else; "": the script is run in place
    code_sha256: str = ""
    archive: str = ""  #: the file with that copy; only in an order to a node


GIVEN_MAX = 131_072
"""The most bytes of arguments and variables that are given to a script. Linux allows so many in a single one, and the
programs that a script starts inherit the variables."""


def check_given(launch: LaunchSpec) -> None:
    """Check that a script can be started with these arguments and variables on any node; :class:`UserError` if not."""
    given = [*launch.arguments, *(f"{name}={value}" for name, value in launch.environment.items())]
    if any("\0" in text for text in given) or any(not name or "=" in name for name in launch.environment):
        raise UserError("no argument or variable can have a zero byte, and no variable's name is empty or has a '='")
    size = sum(len(text.encode(errors="surrogatepass")) + 1 for text in given)
    if size > GIVEN_MAX:
        raise UserError(
            f"the arguments and variables of the script have {size:,} bytes, and at most {GIVEN_MAX:,} can be given to"
            " it: put them into a file that it reads"
        )


class Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The checkpoint, of any trainer, from which a new trainer starts."""

    files: list[str]  #: absolute paths: the file to open, and its parts if it has any
    generation: Annotated[int, msgspec.Meta(ge=0, le=2**53)]  #: the checkpoint's


class Submission(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A new trainer. See :class:`pilot.core.trainer.spec.TrainerSpec` for what planners know about it."""

    launch: LaunchSpec  #: how its script is started
    name: str | None = None  #: its name; None: the coordinator chooses one
    replace: bool = False  #: whether to remove an ended trainer of that name first, with its files
    start: Start | None = None  #: the checkpoint from which it starts; None: from scratch
    min_nodes: int = 1
    max_nodes: int = 64
    sizes: tuple[int, ...] = ()  #: the allowed node counts; empty: all
    nodes_per_replica: int = 1  #: over which its model is divided
    curve: list[tuple[float, float]] | None = None  #: points (nodes, samples per second); None: it is measured
    fixed_curve: bool = False
    profile: Profiling = Profiling.NEVER  #: see :class:`pilot.core.trainer.spec.TrainerSpec`
    reprofile: bool = False  #: see :class:`pilot.core.trainer.spec.TrainerSpec`
    #: assumed costs until they are measured; None: those of the pool's other trainers, or defaults
    rescale_up_s: float | None = None
    #: assumed costs until they are measured; None: those of the pool's other trainers, or defaults
    rescale_down_s: float | None = None
    priority: float = 1.0
    types: tuple[str, ...] = ()  #: see :class:`pilot.core.trainer.spec.TrainerSpec`
    memory_gb: float = 0.0  #: see :class:`pilot.core.trainer.spec.TrainerSpec`
    budget_node_hours: float | None = None
    warm_up_s: float = 900.0
    after_loop_s: float = 600.0
    patience_s: float = 300.0
    check: Checking | None = None  #: whether its script is checked before it grows; None: as at the site

    def spec(self, trainer: TrainerId, uid: TrainerUid) -> TrainerSpec:
        """Return its specification for the core."""
        if self.fixed_curve and self.curve is None:
            raise UserError("--fixed-curve needs a --curve")
        if self.reprofile and (self.fixed_curve or self.profile is Profiling.NEVER):
            with_ = "--fixed-curve" if self.fixed_curve else "--profile never"
            raise UserError(f"--reprofile measures the curve again, so it cannot be combined with {with_}")
        check_given(self.launch)
        other = "--ddp" if self.launch.ddp else "--sync" if seldom.SYNC in self.launch.environment else ""
        if self.nodes_per_replica > 1 and other:
            raise UserError(f"--nodes-per-replica cannot be combined with {other}: its replicas sum in each step")
        known = {name: getattr(self, name) for name in _SPECIFIED if getattr(self, name) is not None}
        given: dict[str, Any] = {
            "trainer": trainer,
            "uid": uid,
            "script": self.launch.script,
            "assumed_costs": self.rescale_up_s is None and self.rescale_down_s is None,
        }
        if self.curve is not None:
            given["curve"] = Curve.of(self.curve)
        if self.start is not None:
            given["starts_after"] = Generation(self.start.generation)
        return TrainerSpec(**known | given)


_SPECIFIED = {field.name for field in fields(TrainerSpec)}.intersection(Submission.__struct_fields__)
"""The fields that a submission shares with the specification."""


def with_check(spec: TrainerSpec, asked: Checking | None, launch: LaunchSpec, site: Site) -> TrainerSpec:
    """Return ``spec`` with the check of its script, as ``asked`` by the user, or else as the ``site`` has it."""
    why = "it is a script for torchrun (--ddp)" if launch.ddp else ""
    if not why and site.ranks_per_node > 1:
        why = f"{site.ranks_per_node} processes train on each node"
    if not why and seldom.SYNC in launch.environment:
        why = "its nodes train by themselves between two exchanges (--sync)"
    return replace(spec, check=asked or Checking(site.check), unchecked=why)


def with_between(launch: LaunchSpec, site: Site, nodes_per_replica: int = 1) -> LaunchSpec:
    """Return ``launch`` with how its nodes sum, as asked by the user, or else as the ``site`` has it now: all nodes of
    a trainer must do the same, also after the site has changed. :class:`UserError` if the site cannot do that, or MPI
    were to sum shards of replicas of several nodes.
    """
    if nodes_per_replica > 1 and (launch.between_nodes or site.between_nodes) == "mpi":
        raise UserError("--nodes-per-replica needs --between-nodes gloo (models on CPUs) or nccl (on NVIDIA GPUs)")
    if launch.between_nodes is None:
        return launch if launch.ddp else msgspec.structs.replace(launch, between_nodes=site.between_nodes)
    try:
        site.replace(between_nodes=launch.between_nodes)
    except SiteMistakes as error:
        raise UserError(f"--between-nodes {launch.between_nodes}: at this site {error}") from None
    return launch


class ForkJob(msgspec.Struct, frozen=True):
    """A training process to start. ``number`` identifies it; ``threads`` is how many torch may use; ``variables`` are
    pilot's own, in addition to the user's in ``launch``.
    """

    number: int
    threads: int
    launch: LaunchSpec
    variables: dict[str, str] = {}


class CheckJob(msgspec.Struct, frozen=True):
    """A script to check. ``kept_in``: the folder of verdicts."""

    launch: LaunchSpec
    limit_s: float
    kept_in: str


MOST_BYTES = 1024 * 1024
"""Enough for any curve: it has one line per node count."""


def read_curve(path: Path) -> Curve:
    """Read the curve in ``path``; :class:`UserError` names the file, the line and the mistake."""
    try:
        lines = read_regular(path, MOST_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise UserError(f"cannot read the scaling curve {path}: {reason}") from None
    points: list[tuple[float, float]] = []
    for row, line in enumerate(lines, start=1):
        cells = line.split("#")[0].replace(",", " ").split()
        numbers = [_number(cell) for cell in cells]
        if cells and (points or any(number is not None for number in numbers)):  # not a header
            points.append(_point(f"{path}:{row}", cells, numbers, points[-1][0] if points else -math.inf))
    if not any(nodes > 0 for nodes, _ in points):
        raise UserError(f"{path}: no points; give lines of nodes and samples per second, for example 4,1210.5")
    try:
        return Curve.of(points)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _point(where: str, cells: list[str], numbers: list[float | None], before: float) -> tuple[float, float]:
    if len(numbers) != 2:
        raise UserError(f"{where}: {len(numbers)} columns; a scaling curve has two, nodes and samples per second")
    nodes, rate = numbers
    if nodes is None or rate is None or not (math.isfinite(nodes) and math.isfinite(rate)):
        raise UserError(f"{where}: {' '.join(cells)!r} is not two finite numbers")
    if rate < 0:
        raise UserError(f"{where}: the rate {rate:g} is negative")
    if nodes < 0 or nodes <= before:
        raise UserError(f"{where}: the node column must be increasing, got {nodes:g} after {before:g}")
    return nodes, rate
