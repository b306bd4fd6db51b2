"""A site: everything that differs between machines, in one validated object.

A site file (``site_configs/`` or a user's own) assigns ``site = Site(...)``; :mod:`pilot.site.site_files` finds and
loads it. ``site_configs/_template.py`` explains every field to an admin; this module defines what is allowed.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from pilot.core.errors import UserError, one_line
from pilot.core.pool.topology import Topology
from pilot.site.node_pattern import NodePattern

Scheduler = Literal["local", "slurm", "pbspro", "lsf"]
"""The batch system."""

Launcher = Literal["simple", "srun", "pals", "mpiexec", "jsrun"]
"""How the job's script starts the agent on the job's nodes; see ``launchers/steps.py``."""

Scope = Literal["user", "project"]
"""Whose jobs ``max_jobs`` counts."""

Check = Literal["auto", "require", "off"]
"""Whether scripts are checked before they grow; see :class:`pilot.core.trainer.spec.Checking`."""

NodeFabric = Literal["shared-memory", "gloo", "nccl"]
GPU_RAILS, MAX_RAILS = 4, 8
"""How the training processes of one node sum their gradients; see :mod:`pilot.train.node.node_group`."""

Signal = Literal["USR1", "USR2", "TERM", "INT", "HUP", "URG"]
"""Signals with which a scheduler can announce a preemption."""

PBS_GRACE_S = 8.0
"""The part of OpenPBS's 10 s between TERM and KILL that is safe to use."""

_WALLTIME = re.compile(r"(\d{1,3}):([0-5]\d):([0-5]\d)")


def walltime_seconds(walltime: str) -> int:
    """Seconds of ``HH:MM:SS``; ValueError if it is malformed."""
    match = _WALLTIME.fullmatch(walltime)
    if match is None:
        raise ValueError(f"{walltime!r} is not HH:MM:SS")
    hours, minutes, seconds = map(int, match.groups())
    return hours * 3600 + minutes * 60 + seconds


def walltime_text(seconds: float) -> str:
    """``HH:MM:SS``, truncated to whole minutes: the unit of Slurm and LSF, and what Parsl passes to them."""
    minutes = int(seconds) // 60
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"


class Site(BaseModel):
    """One machine and one of its queues. Times in seconds; wall times are ``HH:MM:SS`` as in a batch script.

    Raises
    ------
    pydantic.ValidationError
        A field is missing, unknown or wrong; :func:`explain` says so in words for an admin.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", examples=["polaris"])
    description: str = ""

    # --- the queue
    scheduler: Scheduler = Field(examples=["slurm"])
    partition: str | None = Field(default=None, examples=["gpuA100x4-preempt"])
    queue: str | None = Field(default=None, examples=["preemptable"])
    qos: str | None = Field(default=None, examples=["preempt"])
    account: str | None = Field(default=None, examples=["abcd-delta-gpu"])
    walltime: str = Field(default="01:00:00", examples=["48:00:00"])
    walltime_min: str | None = Field(default=None, examples=["00:10:00"])
    guaranteed_s: float = Field(default=0, ge=0, examples=[600])
    max_jobs: int = Field(default=100, ge=1, examples=[20])
    max_jobs_scope: Scope = Field(default="user", examples=["project"])
    charge_factor: float = Field(default=1.0, ge=0, examples=[0.5])
    requeue: bool = Field(default=False, examples=[False])
    exclusive: bool = Field(default=True, examples=[True])
    scheduler_options: str = Field(default="", examples=["#SBATCH --constraint=gpu"])
    select_options: str = Field(default="", examples=["ngpus=4:system=polaris"])

    # --- being preempted
    notice_signal: Signal | None = Field(default=None, examples=["USR1"])
    notice_lead_s: int = Field(default=60, ge=1, le=65535, examples=[300])
    grace_s: float = Field(default=30, ge=0, examples=[300])

    # --- the node
    nodes_per_pilot: int = Field(default=1, ge=1, examples=[1])
    cores_per_node: int | None = Field(default=None, ge=1, examples=[64])
    ranks_per_node: int = Field(default=1, ge=1, examples=[4])
    only_nodes: str | None = Field(default=None, examples=["nid[0001-0512]"])
    topology: str | None = Field(default=None, examples=["(x[0-9]+)c"])
    node_fabric: NodeFabric | None = Field(default=None, examples=["nccl"])
    launcher: Launcher = Field(default="simple", examples=["srun"])
    launcher_options: str = Field(default="", examples=["--cpu-bind=none"])
    prologue: str = Field(default="", examples=["module load conda; conda activate base"])
    python: str | None = Field(default=None, examples=["/home/me/venv/bin/python"])
    scratch_dir: str | None = Field(default=None, examples=["/local/scratch"])
    checkpoint_dir: str | None = Field(default=None, examples=["/lus/eagle/projects/abcd/checkpoints"])

    # --- the network
    bind_address: str | None = Field(default=None, examples=["0.0.0.0"])
    bind_interface: str | None = Field(default=None, examples=["bond0"])
    advertise_interface: str | None = Field(default=None, examples=["bond0"])
    port: int = Field(default=0, ge=0, le=65535, examples=[0])
    interface: str | None = Field(default=None, pattern=r"^[^\s,]+(,[^\s,]+)*$", examples=["hsn0"])
    rails: int | None = Field(default=None, ge=1, le=MAX_RAILS, examples=[4])
    fabric: str = Field(default="tcp", min_length=1, examples=["tcp"])

    # --- times
    poll_s: float = Field(default=30, gt=0, examples=[30])
    command_timeout_s: float = Field(default=30, gt=0, examples=[60])
    heartbeat_s: float = Field(default=5, gt=0, examples=[5])
    silent_s: float = Field(default=30, gt=0, examples=[30])
    orphan_s: float = Field(default=300, gt=0, examples=[300])
    form_timeout_s: float = Field(default=60, gt=0, examples=[60])
    checkpoint_interval_s: float = Field(default=300, gt=0, examples=[300])
    checkpoints_kept: int = Field(default=3, ge=1, examples=[3])

    # --- new scripts
    check: Check = Field(default="auto", examples=["off"])
    check_limit_s: float = Field(default=120, gt=0, examples=[300])

    # --- where the facts are from
    source: str = Field(default="", examples=["https://docs.example.org/queues, 2026-03-01"])
    second_hand: tuple[str, ...] = Field(default=(), examples=[("charge_factor: from a user's script",)])
    retired: str = Field(default="", examples=["decommissioned 2024-11-15"])

    @model_validator(mode="before")
    @classmethod
    def _grants_what_pbs_does(cls, given: Any) -> Any:
        """OpenPBS sends TERM, and KILL after the queue's ``kill_delay``: 10 s unless the admin changed it."""
        if isinstance(given, dict) and given.get("scheduler") == "pbspro":
            return {"grace_s": PBS_GRACE_S, **given}
        return given

    @field_validator("walltime", "walltime_min")
    @classmethod
    def _is_walltime(cls, value: str | None) -> str | None:
        if value is not None and walltime_seconds(value) < 60:
            raise ValueError(f"{value!r} is less than a minute")
        return value

    @field_validator("only_nodes", "topology")
    @classmethod
    def _is_pattern(cls, value: str | None, about: ValidationInfo) -> str | None:
        read = NodePattern.read if about.field_name == "only_nodes" else Topology
        try:
            if value is not None:
                read(value)
        except UserError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("scratch_dir", "checkpoint_dir", "python")
    @classmethod
    def _is_where_it_says(cls, value: str | None, about: ValidationInfo) -> str | None:
        """Nothing expands it, and the coordinator, its jobs and its next start are in different folders."""
        on_path = about.field_name == "python" and value and "/" not in value
        if value is not None and ("$" in value or not (on_path or value.startswith("/"))):
            raise ValueError(f"{value!r} is not an absolute path (~ and $ are not expanded)")
        return value

    @field_validator("scheduler_options")
    @classmethod
    def _are_directives(cls, value: str) -> str:
        """Any other line is a command of the job's script, and a scheduler reads no directives after the first."""
        for line in value.splitlines():
            if line.strip() and not line.startswith("#"):
                raise ValueError(f"{line!r} is not a directive")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if contradictions := self._contradictions():
            raise ValueError("; ".join(contradictions))
        return self

    def _contradictions(self) -> list[str]:
        slurm = self.scheduler == "slurm"
        shortest = walltime_seconds(self.walltime_min or self.walltime)
        rules = [
            (slurm and self.queue, 'queue: Slurm has partitions; for example partition="preempt"'),
            (not slurm and self.partition, 'partition: only Slurm has partitions; for example queue="preemptable"'),
            (not slurm and self.qos, "qos: only Slurm has a QOS; remove it"),
            (
                self.select_options and self.scheduler != "pbspro",
                "select_options: only PBS has a select line; use scheduler_options",
            ),
            (
                self.nodes_per_pilot > 1 and self.launcher == "simple",
                'nodes_per_pilot: more than 1 needs a launcher that reaches all nodes; for example launcher="srun"',
            ),
            (
                self.ranks_per_node > (self.cores_per_node or self.ranks_per_node),
                f"ranks_per_node: {self.ranks_per_node} is more than cores_per_node, {self.cores_per_node}",
            ),
            (
                shortest > walltime_seconds(self.walltime),
                f"walltime_min: {self.walltime_min} is more than walltime {self.walltime}",
            ),
            (
                self.bind_address and self.bind_interface,
                "bind_address: give it or bind_interface, not both",
            ),
            (
                self.silent_s <= self.heartbeat_s,
                f"silent_s: {self.silent_s:g} must be more than heartbeat_s, {self.heartbeat_s:g}",
            ),
            (
                self.orphan_s < self.silent_s,
                f"orphan_s: {self.orphan_s:g} must not be less than silent_s, {self.silent_s:g}",
            ),
            (
                self.orphan_s < 2 * self.heartbeat_s,
                f"orphan_s: {self.orphan_s:g} must be at least twice heartbeat_s, {self.heartbeat_s:g}: a heartbeat "
                "renews a pilot's lease",
            ),
        ]
        return [message for broken, message in rules if broken]

    @property
    def interfaces(self) -> tuple[str, ...]:
        """The interfaces named in ``interface``, for MPI; empty: the one towards the coordinator."""
        return tuple(self.interface.split(",")) if self.interface else ()

    @property
    def rails_per_node(self) -> int:
        """``rails`` if given; otherwise one per named interface, and up to 4 where processes sum with NCCL."""
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

    def replace(self, **changes: Any) -> Site:
        """The site with some fields changed, validated again: ``site = delta.replace(account="abcd-delta-gpu")``."""
        return Site(**{**self.model_dump(exclude_unset=True), **changes})


def explain(error: ValidationError) -> list[str]:
    """One line per wrong field of a :class:`Site`: the field, what is wrong, an example."""
    return [one_line(_explain_one(str(item["loc"][0]) if item["loc"] else "", item)) for item in error.errors()]


def _explain_one(field: str, item: Any) -> str:
    if not field:
        return str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        close = get_close_matches(field, Site.model_fields, n=1)
        return f"{field}: no such field" + (
            f"; did you mean {close[0]}?" if close else "; see site_configs/_template.py"
        )
    known = Site.model_fields.get(field)
    examples = known.examples if known is not None and known.examples else []
    example = f"; for example {field}={examples[0]!r}" if examples else ""
    if item["type"] == "missing":
        return f"{field}: missing{example}"
    wrong = str(item["msg"]).removeprefix("Value error, ")
    given = "" if item["type"] == "value_error" else f", got {_shown(item['input'])}"
    return f"{field}: {wrong[0].lower()}{wrong[1:]}{given}{example}"


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # an object defined in the site file, or an integer with more digits than Python prints
        return f"a {type(value).__name__}"
