"""A site: everything that differs between machines, in one validated object.

A site file (``site_configs/`` or a user's own) assigns ``site = Site(...)``; :mod:`pilot.site.site_files` finds and
loads it. ``site_configs/_template.py`` explains every field to an admin; this module defines what is allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from pilot.core.errors import UserError, one_line
from pilot.core.pool.topology import Topology
from pilot.site.hostlist import NodePattern

Scheduler = Literal["local", "slurm", "pbspro", "lsf"]
"""The batch system."""

Launcher = Literal["simple", "srun", "pals", "mpiexec", "jsrun"]
"""How the job's script starts the agent on the job's nodes; see ``launchers/steps.py``."""

Scope = Literal["user", "project"]
"""Whose jobs ``max_jobs`` counts."""

Check = Literal["auto", "require", "off"]
"""Whether scripts are checked before they grow; see :class:`pilot.core.trainer.spec.Checking`."""

NodeFabric = Literal["shared-memory", "gloo", "nccl"]
"""How the training processes of one node sum their gradients; see :mod:`pilot.train.node.node_group`."""

BetweenNodes = Literal["mpi", "gloo", "nccl"]
"""How nodes sum their gradients: the rank processes over MPI, or the training processes themselves."""

GPU_RAILS, MAX_RAILS = 4, 8

Signal = Literal["USR1", "USR2", "TERM", "INT", "HUP", "URG"]
"""Signals with which a scheduler can announce a preemption."""

PBS_GRACE_S = 8.0
"""OpenPBS sends TERM, and KILL after the queue's ``kill_delay``: 10 s unless the admin changed it."""

_WALLTIME = re.compile(r"(\d{1,3}):([0-5]\d):([0-5]\d)")

_TYPE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")

OF_A_TYPE = frozenset(
    "partition queue qos account walltime walltime_min guaranteed_s max_jobs max_jobs_scope charge_factor requeue"  # noqa: SIM905  # a list would be one name a line
    " exclusive scheduler_options select_options notice_signal notice_lead_s cores_per_node launcher launcher_options"
    " prologue python scratch_dir memory_gb".split()
)
"""The fields in which types of nodes may differ. What nodes of one group must have in common is not among them."""


def walltime_seconds(walltime: str) -> int:
    """Return the seconds of ``HH:MM:SS``; ValueError if it is malformed."""
    match = _WALLTIME.fullmatch(walltime)
    if match is None:
        raise ValueError(f"{walltime!r} is not HH:MM:SS")
    hours, minutes, seconds = map(int, match.groups())
    return hours * 3600 + minutes * 60 + seconds


def walltime_text(seconds: float) -> str:
    """Return ``HH:MM:SS`` in full minutes: the unit of Slurm and LSF, and of Parsl."""
    minutes = int(seconds) // 60
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


class SiteMistakes(ValueError):
    """Mistakes in the arguments of a :class:`Site`, one line each: the field, what is wrong, an example."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = [one_line(line) for line in lines]
        super().__init__("; ".join(self.lines))


class _Checked(msgspec.StructMeta):
    """Has a :class:`Site` check all its arguments before it reports mistakes."""

    def __call__(self, /, **given: Any) -> Any:
        if given.get("scheduler") == "pbspro":
            given = {"grace_s": PBS_GRACE_S, **given}
        values: dict[str, Any] = {}
        mistakes = []
        for field in msgspec.structs.fields(Site):
            try:
                values[field.name] = _value(field, given)
            except (ValueError, UserError) as error:
                example = next(part.examples for part in _parts(field.type) if isinstance(part, Meta)) or [...]
                mistakes.append(f"{field.name}: {error}; for example {field.name}={example[0]!r}")
        for name in [name for name in given if name not in Site.__struct_fields__]:
            close = get_close_matches(name, Site.__struct_fields__, n=1)
            hint = f"did you mean {close[0]}?" if close else "see site_configs/_template.py"
            mistakes.append(f"{name}: no such field; {hint}")
        if not mistakes:
            site = super().__call__(**values)
            mistakes = list(site._contradictions())
        if mistakes:
            raise SiteMistakes(mistakes)
        return site


class Site(msgspec.Struct, frozen=True, kw_only=True, metaclass=_Checked):
    """One machine and one of its queues. Times in seconds; wall times are ``HH:MM:SS`` as in a batch script.

    Raises
    ------
    SiteMistakes
        Fields are missing, unknown or wrong, or contradict each other.
    """

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", examples=["polaris"])]
    description: Annotated[str, Meta(examples=["NCSA Delta, gpuA100x4-preempt"])] = ""

    # --- the queue
    scheduler: Annotated[Scheduler, Meta(examples=["slurm"])]
    partition: Annotated[str, Meta(examples=["gpuA100x4-preempt"])] | None = None
    queue: Annotated[str, Meta(examples=["preemptable"])] | None = None
    qos: Annotated[str, Meta(examples=["preempt"])] | None = None
    account: Annotated[str, Meta(examples=["abcd-delta-gpu"])] | None = None
    walltime: Annotated[str, Meta(examples=["48:00:00"])] = "01:00:00"
    walltime_min: Annotated[str, Meta(examples=["00:10:00"])] | None = None
    guaranteed_s: Annotated[float, Meta(ge=0, examples=[600])] = 0
    max_jobs: Annotated[int, Meta(ge=1, examples=[20])] = 100
    max_jobs_scope: Annotated[Scope, Meta(examples=["project"])] = "user"
    charge_factor: Annotated[float, Meta(ge=0, examples=[0.5])] = 1.0
    requeue: Annotated[bool, Meta(examples=[False])] = False
    exclusive: Annotated[bool, Meta(examples=[True])] = True
    scheduler_options: Annotated[str, Meta(examples=["#SBATCH --constraint=gpu"])] = ""
    select_options: Annotated[str, Meta(examples=["ngpus=4:system=polaris"])] = ""

    # --- being preempted
    notice_signal: Annotated[Signal, Meta(examples=["USR1"])] | None = None
    notice_lead_s: Annotated[int, Meta(ge=1, le=65535, examples=[300])] = 60
    grace_s: Annotated[float, Meta(ge=0, examples=[300])] = 30

    # --- the node
    nodes_per_pilot: Annotated[int, Meta(ge=1, examples=[1])] = 1
    cores_per_node: Annotated[int, Meta(ge=1, examples=[64])] | None = None
    ranks_per_node: Annotated[int, Meta(ge=1, examples=[4])] = 1
    only_nodes: Annotated[str, Meta(examples=["nid[0001-0512]"])] | None = None
    topology: Annotated[str, Meta(examples=["(x[0-9]+)c"])] | None = None
    node_fabric: Annotated[NodeFabric, Meta(examples=["nccl"])] | None = None
    between_nodes: Annotated[BetweenNodes, Meta(examples=["nccl"])] = "mpi"
    launcher: Annotated[Launcher, Meta(examples=["srun"])] = "simple"
    launcher_options: Annotated[str, Meta(examples=["--cpu-bind=none"])] = ""
    prologue: Annotated[str, Meta(examples=["module load conda; conda activate base"])] = ""
    memory_gb: Annotated[float, Meta(ge=0, examples=[40])] = 0
    node_types: Annotated[dict[str, dict[str, Any]], Meta(examples=[{"a100": {"partition": "gpuA100x4-preempt"}}])] = {}
    python: Annotated[str, Meta(examples=["/home/me/venv/bin/python"])] | None = None
    scratch_dir: Annotated[str, Meta(examples=["/local/scratch"])] | None = None
    checkpoint_dir: Annotated[str, Meta(examples=["/lus/eagle/projects/abcd/checkpoints"])] | None = None

    # --- the network
    bind_address: Annotated[str, Meta(examples=["0.0.0.0"])] | None = None
    bind_interface: Annotated[str, Meta(examples=["bond0"])] | None = None
    advertise_interface: Annotated[str, Meta(examples=["bond0"])] | None = None
    port: Annotated[int, Meta(ge=0, le=65535, examples=[0])] = 0
    interface: Annotated[str, Meta(pattern=r"^[^\s,]+(,[^\s,]+)*$", examples=["hsn0"])] | None = None
    rails: Annotated[int, Meta(ge=1, le=MAX_RAILS, examples=[4])] | None = None
    fabric: Annotated[str, Meta(min_length=1, examples=["tcp"])] = "tcp"

    # --- times
    poll_s: Annotated[float, Meta(gt=0, examples=[30])] = 30
    command_timeout_s: Annotated[float, Meta(gt=0, examples=[60])] = 30
    heartbeat_s: Annotated[float, Meta(gt=0, examples=[5])] = 5
    silent_s: Annotated[float, Meta(gt=0, examples=[30])] = 30
    orphan_s: Annotated[float, Meta(gt=0, examples=[300])] = 300
    form_timeout_s: Annotated[float, Meta(gt=0, examples=[60])] = 60
    checkpoint_interval_s: Annotated[float, Meta(gt=0, examples=[300])] = 300
    checkpoints_kept: Annotated[int, Meta(ge=1, examples=[3])] = 3

    # --- new scripts
    check: Annotated[Check, Meta(examples=["off"])] = "auto"
    check_limit_s: Annotated[float, Meta(gt=0, examples=[300])] = 120

    # --- where the facts are from
    source: Annotated[str, Meta(examples=["https://docs.example.org/queues, 2026-03-01"])] = ""
    second_hand: Annotated[tuple[str, ...], Meta(examples=[("charge_factor: from a user's script",)])] = ()
    retired: Annotated[str, Meta(examples=["decommissioned 2024-11-15"])] = ""

    def _contradictions(self) -> Iterator[str]:
        slurm, pbs = self.scheduler == "slurm", self.scheduler == "pbspro"
        if slurm and self.queue:
            yield 'queue: Slurm has partitions; for example partition="preempt"'
        if not slurm and self.partition:
            yield 'partition: only Slurm has partitions; for example queue="preemptable"'
        if not slurm and self.qos:
            yield "qos: only Slurm has a QOS; remove it"
        if self.select_options and not pbs:
            yield "select_options: only PBS has a select line; use scheduler_options"
        if self.nodes_per_pilot > 1 and self.launcher == "simple":
            yield 'nodes_per_pilot: more than 1 needs a launcher that reaches all nodes; for example launcher="srun"'
        if self.cores_per_node and self.ranks_per_node > self.cores_per_node:
            yield f"ranks_per_node: {self.ranks_per_node} is more than cores_per_node, {self.cores_per_node}"
        between = self.between_nodes
        if between != "mpi" and self.ranks_per_node > 1 and self.node_fabric not in (None, between):
            yield f'node_fabric: {self.node_fabric} does not work with between_nodes="{between}"; remove it'
        if self.walltime_min_s > self.walltime_s:
            yield f"walltime_min: {self.walltime_min} is more than walltime {self.walltime}"
        if self.bind_address and self.bind_interface:
            yield "bind_address: give it or bind_interface, not both"
        beat, silent, orphan = (f"{name}: {getattr(self, name):g}" for name in ("heartbeat_s", "silent_s", "orphan_s"))
        if self.silent_s <= self.heartbeat_s:
            yield f"{silent} must be more than {beat}"
        if self.orphan_s < self.silent_s:
            yield f"{orphan} must not be less than {silent}"
        if self.orphan_s < 2 * self.heartbeat_s:
            yield f"{orphan} must be at least twice {beat}: a heartbeat renews a pilot's lease"
        for name, fields in self.node_types.items():
            yield from (f"node_types: {name}: {mistake}" for mistake in self._mistakes_of_type(name, fields))

    def _mistakes_of_type(self, name: str, fields: Mapping[str, Any]) -> Iterator[str]:
        if not _TYPE_NAME.fullmatch(name):
            yield "a name has up to 32 letters, digits, _ and -"
        for field in self.__struct_fields__:
            if field in fields and field not in OF_A_TYPE:
                yield f"{field}: it must be the same for all types"
        try:
            self.of_type(name)
        except SiteMistakes as error:
            yield from error.lines

    @property
    def interfaces(self) -> tuple[str, ...]:
        """The interfaces named in ``interface``, for MPI; empty: the one towards the coordinator."""
        return tuple(self.interface.split(",")) if self.interface else ()

    @property
    def rails_per_node(self) -> int:
        """``rails`` if given; otherwise one per named interface, and up to 4 where processes sum with NCCL. Where no
        gradients pass through them, one is enough.
        """
        if self.between_nodes != "mpi":
            return self.rails or 1
        of_gpus = min(GPU_RAILS, self.ranks_per_node) if self.node_fabric == "nccl" else 1
        return self.rails or max(of_gpus, min(len(self.interfaces), MAX_RAILS))

    @property
    def walltime_s(self) -> int:
        """The wall time to ask for."""
        return walltime_seconds(self.walltime)

    @property
    def walltime_min_s(self) -> int:
        """The shortest useful wall time of a pilot; ``walltime_s`` if none is given."""
        return walltime_seconds(self.walltime_min or self.walltime)

    def of_type(self, name: str) -> Site:
        """Return the site as it is for pilots of the type ``name``, one of ``node_types``."""
        return self.replace(**{**self.node_types[name], "node_types": {}})

    def replace(self, /, **changes: Any) -> Site:
        """Return the site with some fields changed, checked again: ``delta.replace(account="abcd-delta-gpu")``."""
        return Site(**{**msgspec.structs.asdict(self), **changes})


def _value(field: msgspec.structs.FieldInfo, given: Mapping[str, Any]) -> Any:
    """Return the value of ``field``, or its default; :class:`ValueError` or :class:`UserError` if it is wrong."""
    value = given.get(field.name, field.default)
    if value is msgspec.NODEFAULT:
        if field.default_factory is msgspec.NODEFAULT:
            raise ValueError("missing")
        return field.default_factory()
    try:
        value = msgspec.convert(value, field.type)
    except msgspec.ValidationError as error:
        wrong = str(error).partition(", got")[0].replace("`", "").replace(" | null", "")
        if choices := [repr(part) for part in _parts(field.type) if isinstance(part, str)]:
            wrong = f"Expected {' or '.join(choices)}"
        raise ValueError(f"{wrong[0].lower()}{wrong[1:]}, got {_shown(value)}") from None
    for part in value if isinstance(value, tuple) else (value,):
        _check_storable(part)
    if value is not None and field.name in _CHECKS:
        _CHECKS[field.name](value)
    return value


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield an annotation and all that it consists of: types, the values of a ``Literal``, a ``Meta``."""
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


def _check_storable(value: Any) -> None:
    """:class:`ValueError` if ``value`` cannot be stored in the journal."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {value}")
    if isinstance(value, str):
        value.encode()


def _check_walltime(value: str) -> None:
    if walltime_seconds(value) < 60:
        raise ValueError(f"{value!r} is less than a minute")


def _check_absolute(value: str) -> None:
    """Nothing expands a path, and the coordinator, its jobs and its next start are in different folders."""
    if "$" in value or not value.startswith("/"):
        raise ValueError(f"{value!r} is not an absolute path (~ and $ are not expanded)")


def _check_python(value: str) -> None:
    if not value or "/" in value or "$" in value:
        _check_absolute(value)


def _check_directives(value: str) -> None:
    """Any other line is a command of the job's script, and a scheduler reads no directives after the first."""
    for line in value.splitlines():
        if line.strip() and not line.startswith("#"):
            raise ValueError(f"{line!r} is not a directive")


_CHECKS: dict[str, Callable[[str], object]] = {
    "walltime": _check_walltime,
    "walltime_min": _check_walltime,
    "only_nodes": NodePattern.read,
    "topology": Topology,
    "scratch_dir": _check_absolute,
    "checkpoint_dir": _check_absolute,
    "python": _check_python,
    "scheduler_options": _check_directives,
}
"""What is checked of a field beyond its annotation; each raises :class:`ValueError` or :class:`UserError`."""


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # an object defined in the site file, or an integer with more digits than Python prints
        return f"a {type(value).__name__}"
