"""Why a trainer holds the nodes that it holds: the objective's terms with one node fewer and one more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pilot.core.curves.curve_model import Estimate
from pilot.core.curves.mixed import mixed_rate
from pilot.core.curves.speeds import Speed
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem


@dataclass(frozen=True, slots=True)
class Term:
    """FreeTrain's eq. 16 for one trainer on ``nodes`` nodes: ``value - cost = gain``, in objective units."""

    nodes: int  #: how many nodes it would have
    allowed: bool  #: whether eq. 3 allows this count
    value_per_s: float  #: O_j(nodes), objective units per second
    rescale_s: float  #: the pause that the change would cost
    value: float  #: what it would do in the forward-looking time
    cost: float  #: what the pause would cost
    by_type: tuple[int, ...] = ()  #: how many of each type, in the order of `types`; empty: there is one type

    @property
    def gain(self) -> float:
        """The trainer's term of the objective."""
        return self.value - self.cost


@dataclass(frozen=True, slots=True)
class Explanation:
    """The last decision about one trainer."""

    trainer: TrainerId  #: whose
    status: PlanStatus  #: of the plan
    had_nodes: int  #: how many it held when the plan was asked for
    nodes: int  #: how many the plan gave it
    t_fwd_s: float  #: the forward-looking time
    #: eq. 16 for one node fewer, as planned, and one more; the next sizes if only some are allowed
    terms: tuple[Term, ...]
    free_nodes: int  #: nodes that the plan left over
    donor: TrainerId | None  #: the trainer that would lose least by giving up a node; null: none could
    donor_loss: float  #: how much it would lose, in objective units
    pinned: bool = False  #: whether its number was fixed, because it is profiled or lends nodes to one that is
    types: tuple[str, ...] = ()  #: the pool's types of nodes; empty: there is one
    had_by_type: tuple[int, ...] = ()  #: of each type, how many nodes it held
    by_type: tuple[int, ...] = ()  #: of each type, how many nodes the plan gave it
    free_by_type: tuple[int, ...] = ()  #: of each type, how many nodes the plan left over
    mixed_gap: float = 0.0  #: by how much more the plan took its nodes for than they do, of several types

    def sentences(self) -> list[str]:
        """The explanation in words."""
        had, got = _nodes(self.had_nodes), str(self.nodes)
        if self.types:
            had, got = self._named(self.had_by_type), self._named(self.by_type)
        out = [f"{self.trainer} had {had} and got {got}: {_STATUS[self.status]}."]
        if self.pinned:
            return [*out, "Its node count was fixed, because it is being profiled or lends nodes to a trainer that is."]
        now = next(t for t in self.terms if (t.nodes, t.by_type) == (self.nodes, self.by_type))
        out += [self._compare(now, t) for t in self.terms if t is not now]
        if abs(self.mixed_gap) >= LEAST_GAP:
            more = "more" if self.mixed_gap > 0 else "less"
            gap = f"The plan took its nodes for {abs(self.mixed_gap):.0%} {more} than they do"
            out.append(f"{gap}, because {self.nodes} nodes exchange {more} than it assumed.")
        return out

    def _named(self, by_type: tuple[int, ...]) -> str:
        some = [f"{nodes} {kind or 'other'}" for kind, nodes in zip(self.types, by_type, strict=True) if nodes]
        return " and ".join(some) or "no nodes"

    def _compare(self, now: Term, other: Term) -> str:
        on = self._named(other.by_type) if self.types else _nodes(other.nodes)
        if not other.allowed:
            return f"It cannot run on {on}."
        worth = f"{_number(other.gain)} over the next {self.t_fwd_s:g} s instead of {_number(now.gain)}"
        text = f"On {on} it would be worth {worth}"
        if other.nodes < now.nodes:
            return f"{text}, and a node would be free."
        if self.types:
            free = any(o > n and left for o, n, left in zip(other.by_type, now.by_type, self.free_by_type, strict=True))
            return f"{text}, {'using a free node' if free else 'but no such node is free'}."
        if self.free_nodes:
            return f"{text}, using a free node."
        if self.donor is None:
            return f"{text}, but no node is free and no trainer can give one up."
        return f"{text}, but no node is free, and {self.donor} would lose {_number(self.donor_loss)} by giving one up."


_STATUS = {
    PlanStatus.OPTIMAL: "no other plan is worth more",
    PlanStatus.INCUMBENT: "the best plan found within the time limit",
    PlanStatus.KEPT: "no better plan than the current allocation was found",
}


def explain(problem: Problem, plan: Plan, trainer: TrainerId) -> Explanation | None:
    """Explain what ``plan`` gave ``trainer``; None if it was not planned for."""
    counts = plan.as_dict() if plan.status is not PlanStatus.KEPT else problem.kept()
    candidate = next((c for c in problem.candidates if c.trainer == trainer), None)
    if candidate is None or trainer not in plan.as_dict():
        return None
    if problem.types:
        return _explain_types(problem, plan, candidate)
    nodes = counts.get(trainer, 0)
    donor, loss = _cheapest_donor(problem, counts, trainer)
    return Explanation(
        trainer=trainer,
        status=plan.status,
        had_nodes=candidate.current_nodes,
        nodes=nodes,
        t_fwd_s=problem.t_fwd_s,
        terms=tuple(_term(candidate, n, problem.t_fwd_s) for n in _neighbours(candidate, nodes) if n >= 0),
        free_nodes=problem.nodes - sum(counts.values()),
        donor=donor,
        donor_loss=loss,
        pinned=candidate.pin is not None,
    )


def _explain_types(problem: Problem, plan: Plan, candidate: Candidate) -> Explanation:
    """As :func:`explain`, with one node fewer or more of each type that it can use."""
    given = dict(plan.by_type) if plan.status is not PlanStatus.KEPT else problem.kept_by_type()
    by_type = given.get(candidate.trainer, (0,) * len(problem.types))
    one = [tuple(int(i == k) for i in range(len(by_type))) for k, speed in enumerate(candidate.speeds) if speed > 0]
    near = [tuple(n + sign * o for n, o in zip(by_type, step, strict=True)) for sign in (-1, 1) for step in one]
    taken = [sum(nodes) for nodes in zip(*given.values(), strict=True)]
    free = [nodes - n for nodes, n in zip(problem.types_nodes, taken, strict=True)]
    assumed, nodes = candidate.value_on(by_type), sum(by_type)
    real = mixed_rate(candidate.value, nodes, candidate.effective(by_type))
    return Explanation(
        candidate.trainer,
        plan.status,
        candidate.current_nodes,
        nodes,
        problem.t_fwd_s,
        tuple(_term_on(candidate, n, problem.t_fwd_s) for n in sorted([by_type, *near], key=sum) if min(n) >= 0),
        sum(free),
        None,
        0.0,
        candidate.pin is not None,
        problem.types,
        candidate.held,
        by_type,
        tuple(free),
        assumed / real - 1.0 if real > 0 else 0.0,
    )


def _term_on(candidate: Candidate, by_type: tuple[int, ...], t_fwd_s: float) -> Term:
    per_s, pause_s = candidate.value_on(by_type), candidate.rescale_on_s(by_type)
    cost = candidate.value_on(candidate.held) * pause_s
    return Term(sum(by_type), candidate.allows_on(by_type), per_s, pause_s, t_fwd_s * per_s, cost, by_type)


def _neighbours(candidate: Candidate, nodes: int) -> tuple[int, int, int]:
    """The next smaller count, this one, the next larger one."""
    smaller = max((n for n in candidate.sizes if n < nodes), default=0) if candidate.sizes and nodes else nodes - 1
    return smaller, nodes, min((n for n in candidate.sizes if n > nodes), default=nodes + 1)


LEAST_GAP = 0.01
"""A smaller difference between a plan's assumption and the rate of a mixed group is not said."""

AGED_S = 600.0
"""The age of a measured rate is said from here on."""

UNCERTAIN = 0.2
"""A rate whose relative error is this large contradicts others or has hardly been measured; age alone stays below."""


def rate_sentences(known: Sequence[Estimate], *, guessed: bool, known_from: str = "") -> list[str]:
    """A trainer's rates (measured, estimated or given) in words; ``known_from``: the trainer whose rates it began
    with."""
    if guessed:
        return ["Its rate has not been measured yet: plans assume that it scales like a typical trainer."]
    measured = [e for e in known if e.measured]
    by_other = [e for e in known if e.by_other]
    others = [e for e in known if not e.measured and not e.by_other]
    given = "given" if others and others[0].error == 0 else "estimated"
    words = [("measured", measured), (f"measured by {known_from} of the same script", by_other), (given, others)]
    said = [f"Samples per second, {word}: {', '.join(map(_rate, found))}." for word, found in words if found]
    if any(e.error >= UNCERTAIN for e in measured):
        said.append("Rates that contradict others, or were hardly measured, are uncertain until measured again.")
    return said


def speed_sentences(speeds: Mapping[str, Speed], reference: str | None) -> list[str]:
    """How fast a trainer computes on nodes of each type, in words; nothing if there is only one."""
    said = [
        f"{_number(speed.value)} ± {speed.error:.0%} on {kind or 'other'}{'' if speed.measured else ' (expected)'}"
        for kind, speed in speeds.items()
        if kind != reference
    ]
    unit = f"relative to {reference or 'other'}" if reference is not None else "relative to a usual node"
    return [f"Speed of one node, {unit}: {', '.join(said)}."] if said and len(speeds) > 1 else []


def _rate(of: Estimate) -> str:
    error = f" ± {of.error:.0%}" if of.error else ""
    age = f" ({of.age_s / 3600:.1f} h ago)" if of.age_s is not None and of.age_s >= AGED_S else ""
    return f"{_number(of.per_s)}{error} on {_nodes(of.nodes)}{age}"


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _term(candidate: Candidate, nodes: int, t_fwd_s: float) -> Term:
    per_s, pause_s = candidate.value_at(nodes), candidate.rescale_s(nodes)
    cost = candidate.value_at(candidate.current_nodes) * pause_s
    return Term(nodes, candidate.allows(nodes), per_s, pause_s, t_fwd_s * per_s, cost)


def _cheapest_donor(
    problem: Problem, counts: Mapping[TrainerId, int], receiver: TrainerId
) -> tuple[TrainerId | None, float]:
    losses = {
        c.trainer: c.gain(nodes, problem.t_fwd_s) - c.gain(nodes - 1, problem.t_fwd_s)
        for c in problem.candidates
        if c.trainer != receiver and (nodes := counts.get(c.trainer, 0)) and c.allows(nodes - 1)
    }
    return min(losses.items(), key=lambda item: item[1], default=(None, 0.0))
