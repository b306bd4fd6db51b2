"""The specification of a trainer by its user."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from pilot.core.curves.curve import RATES, Curve, is_rate
from pilot.core.curves.curve_model import MeasuredRate
from pilot.core.errors import UserError
from pilot.core.ids import NO_GENERATION, NO_UID, Generation, TrainerId, TrainerUid

NODES_MAX = 1_000_000
COST_MAX_S = 1e9
TIME_MAX_S = 1e9
PRIORITY_MAX = 1e9
BUDGET_MAX_H = 1e9
MEMORY_MAX_GB = 1e6


class Profiling(StrEnum):
    """Whether a trainer without a known curve is profiled: measured on a few node counts while it trains."""

    AUTO = "auto"
    """On the counts that are most useful to plans."""
    INVERSE = "inverse"
    """On every count, from the largest down (MalleTrain §3.3)."""
    NEVER = "never"
    """Not profiled: its rates are measured on whatever counts plans choose."""


class Checking(StrEnum):
    """Whether a trainer's script is checked on its first node before it gets a second one (``pilot check``)."""

    AUTO = "auto"
    """If it can be; otherwise it grows unchecked."""
    REQUIRE = "require"
    """It only grows once it has passed."""
    OFF = "off"


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """One elastic training task as submitted."""

    trainer: TrainerId  #: its id, also its name in the pool
    min_nodes: int = 1  #: fewest nodes on which it can run (FreeTrain §3.1)
    max_nodes: int = 64  #: most nodes
    #: samples per second by nodes; None: estimated (:mod:`pilot.core.curves.curve_model`)
    curve: Curve | None = None
    fixed_curve: bool = False  #: keep the given curve, ignoring measurements
    rescale_up_s: float = 20.0  #: pause for a rescale to more nodes; measured later, unless ``fixed_curve``
    rescale_down_s: float = 10.0  #: pause for a rescale to fewer nodes
    priority: float = 1.0  #: factor for the priority-weighted objective
    #: value per second by nodes, if not derived from ``curve`` (replays of published sets)
    objective_curve: Curve | None = None
    #: allowed node counts, increasing; empty: all from ``min_nodes`` to ``max_nodes``. Otherwise these two become the
    #: first and the last of them
    sizes: tuple[int, ...] = ()
    nodes_per_replica: int = 1  #: of a model that is divided over several nodes; all node counts are multiples of it
    samples: float | None = None  #: total samples of its loop, if known in advance (replays)
    uid: TrainerUid = NO_UID  #: its identity across pools, stored in its folder and checkpoints
    #: generation of the checkpoint from which it starts, followed by its own; 0: from scratch
    starts_after: Generation = NO_GENERATION
    #: the user gave no rescale costs: those measured for the pool's other trainers take precedence over these two
    assumed_costs: bool = False
    #: charged node-hours that its workers may use before it stops; None: no limit
    budget_node_hours: float | None = None
    warm_up_s: float = 900.0  #: how long the script may take on a node until its session waits for a group
    after_loop_s: float = 600.0  #: how long the script may run after its training loop, on the leader's node
    patience_s: float = 300.0  #: how long others wait for a process without progress before it counts as stuck
    profile: Profiling = Profiling.NEVER  #: whether it is profiled if its curve is not known
    reprofile: bool = False  #: profile it even though its curve is known
    script: str = ""  #: identifies its script; trainers of one script are assumed to scale alike. "": not known
    #: measured rates of another trainer of its script, by node count, where it has none of its own
    known: tuple[MeasuredRate, ...] = ()
    known_from: str = ""  #: that trainer, for users
    check: Checking = Checking.OFF  #: whether its script is checked before it grows
    types: tuple[str, ...] = ()  #: the types of nodes that it can use; empty: all
    memory_gb: float = 0.0  #: what it needs of an accelerator, or of a node without any
    #: how fast it computes on a node of each type, relative to its reference type, if known in advance (replays)
    speeds: tuple[tuple[str, float], ...] = ()
    unchecked: str = ""  #: why its script cannot be checked where it runs; "": nothing is known to prevent it

    def __post_init__(self) -> None:
        if mistake := next(self._mistakes(), ""):
            raise UserError(f"trainer {self.trainer}: {mistake}")
        if self.nodes_per_replica > 1 and not self.sizes:
            object.__setattr__(self, "sizes", self._multiples())
        if self.sizes:
            object.__setattr__(self, "min_nodes", self.sizes[0])
            object.__setattr__(self, "max_nodes", self.sizes[-1])

    def _mistakes(self) -> Iterator[str]:
        if self.min_nodes < 1:
            yield f"min_nodes must be at least 1, got {self.min_nodes}"
        if self.min_nodes > self.max_nodes:
            yield f"min_nodes {self.min_nodes} exceeds max_nodes {self.max_nodes}"
        if not 1 <= self.nodes_per_replica <= self.max_nodes:
            yield f"nodes_per_replica must be between 1 and max_nodes {self.max_nodes}, got {self.nodes_per_replica}"
        elif self.nodes_per_replica > 1 and not 0 < len(self.sizes or self._multiples()) <= SIZES_MAX:
            yield f"no multiple of {self.nodes_per_replica} nodes, or more than {SIZES_MAX}, are between its bounds"
        elif odd := [n for n in self.sizes if n % self.nodes_per_replica]:
            yield f"the size {odd[0]} is not a multiple of {self.nodes_per_replica}, the nodes of a replica"
        if self.max_nodes > NODES_MAX:
            yield f"max_nodes must be at most {NODES_MAX}, got {self.max_nodes}"
        if self.sizes and (mistake := mistake_in_sizes(self.sizes, self.min_nodes, self.max_nodes)):
            yield mistake
        if not all(0 <= cost_s <= COST_MAX_S for cost_s in (self.rescale_up_s, self.rescale_down_s)):
            yield f"a rescale cost must be between 0 and {COST_MAX_S:g} seconds"
        if not all(0 < seconds <= TIME_MAX_S for seconds in (self.warm_up_s, self.after_loop_s, self.patience_s)):
            yield f"warm_up_s, after_loop_s and patience_s must be between 0 and {TIME_MAX_S:g}"
        if not 1 / PRIORITY_MAX <= self.priority <= PRIORITY_MAX:
            bounds = f"between {1 / PRIORITY_MAX:g} and {PRIORITY_MAX:g}"
            yield f"priority must be greater than 0, {bounds}, got {self.priority}"
        if self.budget_node_hours is not None and not 0 < self.budget_node_hours <= BUDGET_MAX_H:
            yield f"a budget must be more than 0 and at most {BUDGET_MAX_H:g} node-hours"
        if not all(self.types) or not 0 <= self.memory_gb <= MEMORY_MAX_GB:
            yield f"--types takes names, and --memory a number of GB from 0 to {MEMORY_MAX_GB:g}"
        if self.check is Checking.REQUIRE and (why := self.uncheckable()):
            yield f"--check require: {why}; with --check auto it grows unchecked"
        if self.curve is not None and not all(map(is_rate, self.curve.per_s)):
            yield f"a rate must be 0 or between {RATES[0]:g} and {RATES[1]:g}"

    def _multiples(self) -> tuple[int, ...]:
        """The sizes of a trainer whose replicas have several nodes."""
        least = -(-self.min_nodes // self.nodes_per_replica) * self.nodes_per_replica
        return tuple(range(least, self.max_nodes + 1, self.nodes_per_replica))

    def uncheckable(self) -> str:
        """Why its script cannot be checked on its first node; "": nothing is known to prevent it."""
        least = self.sizes[0] if self.sizes else self.min_nodes
        return self.unchecked or (f"it needs at least {least} nodes" if least > 1 else "")

    def fitting(self, nodes: int) -> int:
        """The largest allowed size that fits into ``nodes``; ``nodes`` itself if that is too few to run."""
        return largest_fitting(self.sizes, nodes)


SIZES_MAX = 1000
"""The longest list; a longer one is a mistake."""


def mistake_in_sizes(sizes: tuple[int, ...], least: int, most: int) -> str:
    """Why ``sizes`` (not empty) are not increasing node counts within ``least`` to ``most``; "": they are.

    They are the node counts that a trainer may have, besides its bounds (Huawei §4.3: powers of two).
    """
    if len(sizes) > SIZES_MAX:
        return f"at most {SIZES_MAX} sizes can be given, not {len(sizes)}"
    if any(b <= a for a, b in pairwise(sizes)):
        return f"the sizes {listed(sizes)} must be increasing, e.g. 1,2,4,8"
    outside = [n for n in sizes if not least <= n <= most]
    return f"the size {outside[0]} is not between {least} and {most}, the fewest and the most nodes" if outside else ""


def largest_fitting(sizes: tuple[int, ...], nodes: int) -> int:
    """The largest allowed count within ``nodes`` nodes.

    Nodes that are too few for the smallest one are left as they are: they may hold a state (parked).
    """
    fits = bisect_right(sizes, nodes)
    return sizes[fits - 1] if fits else nodes


def listed(sizes: tuple[int, ...]) -> str:
    """``sizes`` as in ``1,2,4``."""
    return ",".join(map(str, sizes))
