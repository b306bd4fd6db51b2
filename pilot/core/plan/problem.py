"""The input of a planner (:class:`Problem`) and its output (:class:`Plan`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from pilot.core.curves.curve import Curve
from pilot.core.ids import TrainerId
from pilot.core.pool.losses import NO_LOSS, LossRate
from pilot.core.trainer.spec import largest_fitting

NOBODY: Mapping[TrainerId, int] = MappingProxyType({})

ByType = tuple[int, ...]
"""x_jk: a trainer's nodes of each of the problem's types, in their order."""

UNSAID_STEP_S = 300.0
"""How long a plan is assumed to hold if every event causes a new one: Huawei's five minutes."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One trainer as a planner sees it."""

    trainer: TrainerId  #: whose
    current_nodes: int  #: C_j, the nodes that it holds now (FreeTrain eq. 1); parked nodes count
    min_nodes: int  #: N_j^min, N_j^max; the plan gives 0 or something between them (eq. 3)
    max_nodes: int  #: N_j^min, N_j^max; the plan gives 0 or something between them (eq. 3)
    value: Curve  #: O_j, objective value per second as a function of nodes (eq. 12)
    rescale_up_s: float  #: R_j^up, R_j^dw (eq. 13)
    rescale_down_s: float  #: R_j^up, R_j^dw (eq. 13)
    sizes: tuple[int, ...] = ()  #: the counts between them that are allowed, rising; empty: all
    #: the plan gives it exactly this many nodes, whatever that gains; None: it is free. All pins fit together
    pin: int | None = None
    #: it has waited for long (:mod:`pilot.core.plan.aging`): the plan gives it its minimum or more. All of these fit
    #: together, and with the pins
    must_run: bool = False
    trained_s: float = 0.0  #: how long it has trained; 0 unless the problem is timed
    #: its remaining work, in seconds on one node (Huawei's ETA); None: not known, or the problem is not timed
    left_s: float | None = None
    held: ByType = ()  #: c_jk, its current nodes of each of the problem's types; empty: there is one type
    #: s_jk, how fast it computes on a node of each type, relative to its reference type; 0: it cannot use the type
    speeds: tuple[float, ...] = ()
    one_type: bool = False  #: all its nodes are of one type, because each gets the same share of the samples

    def value_at(self, nodes: int) -> float:
        """O_j(nodes); fewer than ``min_nodes`` make no progress."""
        return self.value.at(nodes) if nodes >= self.min_nodes else 0.0

    def rescale_s(self, nodes: int) -> float:
        """R_j of a change from ``current_nodes`` to ``nodes`` (FreeTrain eq. 13)."""
        if nodes == self.current_nodes:
            return 0.0
        return self.rescale_up_s if nodes > self.current_nodes else self.rescale_down_s

    def gain(self, nodes: int, t_fwd_s: float) -> float:
        """This trainer's term of the objective on ``nodes`` nodes (FreeTrain eq. 16)."""
        return t_fwd_s * self.value_at(nodes) - self.value_at(self.current_nodes) * self.rescale_s(nodes)

    def wants(self, t_fwd_s: float) -> int:
        """The nodes that the best plan would give it if there were enough for all: the smallest count of maximum gain.

        Its gain is linear between the counts where its curve bends, except at ``current_nodes``, where it is higher by
        the cost of a rescale.
        """
        tried = {self.min_nodes, self.max_nodes, *self.value.counts(), self.current_nodes, *self.sizes}
        allowed = sorted(n for n in tried if n >= self.min_nodes and self.allows(n))
        return max(allowed, key=lambda n: self.gain(n, t_fwd_s))

    def allows(self, nodes: int) -> bool:
        """Whether a plan may give ``nodes`` (FreeTrain eq. 3)."""
        if self.pin is not None:
            return nodes == self.pin
        within = self.min_nodes <= nodes <= self.max_nodes
        return (nodes == 0 and not self.must_run) or (within and (not self.sizes or nodes in self.sizes))

    def free_of_pin(self) -> Candidate:
        """The same candidate, whose pin is its only size."""
        if self.pin is None:
            return self
        only = (self.pin,) if self.pin else ()
        return replace(self, pin=None, sizes=only, max_nodes=self.pin, must_run=bool(only))

    def most_within(self, nodes: int) -> int:
        """The largest count within ``nodes`` that a plan may give."""
        if self.pin is not None:
            return self.pin if self.pin <= nodes else 0
        most = largest_fitting(self.sizes, min(nodes, self.max_nodes))
        return most if self.allows(most) else 0

    def effective(self, by_type: ByType) -> float:
        """e: as many nodes of its reference type compute as fast as these of several types, whose shares even out."""
        return sum(speed * nodes for speed, nodes in zip(self.speeds, by_type, strict=True))

    def value_on(self, by_type: ByType) -> float:
        """O_j(e), what planners take nodes of several types for (:mod:`pilot.core.curves.mixed` has the rate)."""
        return self.value.at(self.effective(by_type)) if sum(by_type) >= self.min_nodes else 0.0

    def rescale_on_s(self, by_type: ByType) -> float:
        """R_j of a change from ``held``: the longer one if it gets nodes of one type and gives back some of another."""
        changes = [nodes - held for nodes, held in zip(by_type, self.held, strict=True)]
        return max(self.rescale_up_s * (max(changes) > 0), self.rescale_down_s * (min(changes) < 0))

    def gain_on(self, by_type: ByType, t_fwd_s: float) -> float:
        """:meth:`gain` on nodes of several types."""
        return t_fwd_s * self.value_on(by_type) - self.value_on(self.held) * self.rescale_on_s(by_type)

    def usable(self, by_type: ByType) -> int:
        """How many of these nodes it could have together; of one type where all its nodes must be."""
        fit = [nodes for speed, nodes in zip(self.speeds, by_type, strict=True) if speed > 0]
        return max(fit, default=0) if self.one_type else sum(fit)

    def allows_on(self, by_type: ByType) -> bool:
        """Whether a plan may give these nodes: their number, and only types that it can use."""
        return self.allows(sum(by_type)) and min(by_type) >= 0 and self.usable(by_type) == sum(by_type)

    def take(self, count: int, there: ByType, order: Iterable[int]) -> ByType | None:
        """``count`` of these nodes, of usable types in this order, or of one where all must be; None if too few."""
        usable = [k for k in order if self.speeds[k] > 0]
        for types in [[k] for k in usable] if self.one_type else [usable]:
            given = [0] * len(there)
            for k in types:
                given[k] = min(count - sum(given), there[k])
            if sum(given) == count:
                return tuple(given)
        return None

    def most_of(self, there: ByType) -> ByType:
        """The largest number of these nodes that a plan may give, of the types on which it is fastest."""
        fastest = sorted(range(len(there)), key=lambda k: -self.speeds[k])
        return self.take(self.most_within(self.usable(there)), there, fastest) or (0,) * len(there)


@dataclass(frozen=True, slots=True)
class Problem:
    """How to divide ``nodes`` interchangeable nodes among ``candidates`` for the next ``t_fwd_s`` seconds."""

    nodes: int  #: all that a plan may use: those held by the candidates and the free ones
    t_fwd_s: float
    candidates: tuple[Candidate, ...]  #: in submission order, which breaks ties
    step_s: float = UNSAID_STEP_S  #: time until the next plan is made, for planners that look ahead
    #: no decision is due: only waiting trainers may get nodes, idle ones (:mod:`pilot.core.plan.between`)
    between: bool = False
    #: how many more nodes are free that leave within ``t_fwd_s``; planners that look no further leave them alone
    ending: int = 0
    ends_in_s: float = 0.0  #: for how long these count (:mod:`pilot.core.pool.pool`)
    losses: LossRate = NO_LOSS  #: how often the pool has lost nodes so far; none unless the problem is timed
    #: less than 1: besides those that hold nodes, the plan is for the first candidates, which are worth this share of
    #: all (:mod:`pilot.planners.admission`); 1: for all
    queue_share: float = 1.0
    #: the types of its nodes, in the order of ``types_nodes``; empty: all are alike
    types: tuple[str, ...] = ()
    types_nodes: ByType = ()  #: N_k, how many of ``nodes`` are of each type

    def gain(self, candidate: Candidate, nodes: int, ending: int = 0) -> float:
        """A candidate's term of the objective where ``ending`` of its ``nodes``, all of them new, leave after
        ``ends_in_s``: from then on the others are worth something, and it is rescaled down once more.
        """
        gain = candidate.gain(nodes, self.t_fwd_s)
        if not ending:
            return gain
        value, after = candidate.value_at(nodes), candidate.value_at(nodes - ending)
        return gain - (self.t_fwd_s - self.ends_in_s) * (value - after) - value * candidate.rescale_down_s

    def objective(self, counts: Mapping[TrainerId, int], ending: Mapping[TrainerId, int] = NOBODY) -> float:
        """The value of eq. 16 for ``counts`` (a trainer that is missing gets 0), of which some are ``ending``."""
        return sum(self.gain(c, counts.get(c.trainer, 0), ending.get(c.trainer, 0)) for c in self.candidates)

    def feasible(self, counts: Mapping[TrainerId, int], ending: Mapping[TrainerId, int] = NOBODY) -> bool:
        """Whether ``counts`` respects each trainer's sizes (eq. 3) and the capacity (eq. 5, summed over nodes), and
        ``ending`` nodes are among those that trainers get; without them, too, counts are allowed ones."""
        total, late = sum(counts.get(c.trainer, 0) for c in self.candidates), sum(ending.values())
        grown = {c.trainer: counts.get(c.trainer, 0) - c.current_nodes for c in self.candidates}
        fits = late <= self.ending and total - late <= self.nodes
        fits = fits and all(0 < nodes <= grown.get(trainer, 0) for trainer, nodes in ending.items())
        stays = {c.trainer: counts.get(c.trainer, 0) - ending.get(c.trainer, 0) for c in self.candidates}
        return fits and all(c.allows(counts.get(c.trainer, 0)) and c.allows(stays[c.trainer]) for c in self.candidates)

    def kept(self) -> dict[TrainerId, int]:
        """The current counts, which stay in force if no better plan is known."""
        return {c.trainer: c.current_nodes for c in self.candidates}

    def objective_on(self, by_type: Mapping[TrainerId, ByType]) -> float:
        """What plans for several types maximise: eq. 16 with O_j(e). A trainer that is missing gets nothing."""
        none = (0,) * len(self.types)
        return sum(c.gain_on(by_type.get(c.trainer, none), self.t_fwd_s) for c in self.candidates)

    def feasible_on(self, by_type: Mapping[TrainerId, ByType]) -> bool:
        """Whether each trainer may have its nodes, and there are enough of each type."""
        none = (0,) * len(self.types)
        given = [by_type.get(c.trainer, none) for c in self.candidates]
        enough = fits_in(given, self.types_nodes)
        return enough and all(c.allows_on(nodes) for c, nodes in zip(self.candidates, given, strict=True))

    def permits(self, plan: Plan) -> bool:
        """Whether ``plan`` is feasible, with one type or several."""
        if self.types:
            return self.feasible_on(dict(plan.by_type))
        return self.feasible(plan.as_dict(), dict(plan.ending))

    def with_types(self) -> Problem:
        """The same problem; if all nodes are alike, with them as its only type."""
        if self.types:
            return self
        alike = (replace(c, held=(c.current_nodes,), speeds=(1.0,)) for c in self.candidates)
        return replace(self, candidates=tuple(alike), types=("",), types_nodes=(self.nodes,))

    def kept_by_type(self) -> dict[TrainerId, ByType]:
        """As :meth:`kept`, by type."""
        return {c.trainer: c.held for c in self.candidates}


def fits_in(nodes: Iterable[ByType], there: ByType) -> bool:
    """Whether there are as many of each type as all trainers' ``nodes`` together."""
    return all(sum(of_type) <= n for of_type, n in zip(zip(*nodes, strict=True), there, strict=False))


def place(candidates: Sequence[Candidate], there: ByType) -> list[ByType] | None:
    """Nodes for each: its pin, or else the fewest that it runs on. Those that can use few types choose first: the types
    that they hold, then those that few others can use. None: they do not all find some in this way."""
    rivals = [sum(c.speeds[k] > 0 for c in candidates) for k in range(len(there))]
    counts = [c.pin if c.pin is not None else (c.sizes or (c.min_nodes,))[0] for c in candidates]
    usable = [sum(speed > 0 for speed in c.speeds) for c in candidates]
    found = dict[int, ByType]()
    for j in sorted(range(len(candidates)), key=lambda j: (usable[j], -counts[j], candidates[j].trainer)):
        held = candidates[j].held
        given = candidates[j].take(counts[j], there, sorted(range(len(there)), key=lambda k: (-held[k], rivals[k])))
        if given is None:
            return None
        found[j], there = given, tuple(n - taken for n, taken in zip(there, given, strict=True))
    return [found[j] for j in range(len(candidates))]


class PlanStatus(StrEnum):
    """How good a plan is known to be. Read it before the counts."""

    OPTIMAL = "optimal"
    """Proved optimal."""
    INCUMBENT = "incumbent"
    """The best one known when the time was up, better than keeping; ``gap`` is its distance from a bound."""
    KEPT = "kept"
    """Nothing better than the current allocation is known: it stays (FreeTrain §3.6)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Trainer → node count, and how good that is.

    ``counts`` has one entry per candidate that was planned for, in the problem's order: from ``first_out`` on, those
    without nodes were left out (None: nobody was). ``objective`` is eq. 16's value for the counts.
    ``gap`` is (bound - objective) / max(1, \\|objective\\|): 0 if proved optimal, None if no bound is known.
    ``ending``: how many of them are ending nodes, for trainers that get any.
    ``build_s`` is the time for building (and writing) the model, ``solve_s`` the solver's; they decide nothing.
    """

    status: PlanStatus
    counts: tuple[tuple[TrainerId, int], ...]
    objective: float
    gap: float | None = 0.0
    planner: str = ""
    build_s: float = 0.0
    solve_s: float = 0.0
    ending: tuple[tuple[TrainerId, int], ...] = ()
    first_out: TrainerId | None = None
    #: for a problem with several types: trainer → nodes of each type, for all of ``counts``; empty: there is one type
    by_type: tuple[tuple[TrainerId, ByType], ...] = ()

    def as_dict(self) -> dict[TrainerId, int]:
        """Trainer → count."""
        return dict(self.counts)
