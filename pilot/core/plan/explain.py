"""Why a trainer holds the nodes that it holds: the objective's terms with one node fewer and one more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pilot.core.curves.curve_model import Estimate
from pilot.core.curves.mixed import mixed_rate
from pilot.core.curves.speeds import Speed
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import ByType, Candidate, Plan, PlanStatus, Problem


@dataclass(frozen=True, slots=True)
class Term:
    """FreeTrain's eq. 16 for one trainer on ``nodes`` nodes: ``value - cost = gain``, in objective units."""

    nodes: int  #: how many nodes it would have
    allowed: bool  #: whether eq. 3 allows this count
    value_per_s: float  #: O_j(nodes), objective units per second
    rescale_s: float  #: the pause that the change would cost
    value: float  #: what it would do in the forward-looking time
    cost: float  #: what the pause would cost
    by_type: tuple[int, ...] = ()  #: how many nodes of each of the pool's types; empty: there is one

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
    mixed_gap: float = 0.0  #: by how much more than its rate the plan took its nodes of several types for

    def sentences(self) -> list[str]:
        """The explanation in words."""
        had, got = self._on(self.had_nodes, self.had_by_type), self._on(self.nodes, self.by_type)
        out = [f"{self.trainer} had {had} and got {got if self.types else self.nodes}: {_STATUS[self.status]}."]
        if self.pinned:
            return [*out, "Its node count was fixed, because it is being profiled or lends nodes to a trainer that is."]
        now = next(t for t in self.terms if (t.nodes, t.by_type) == (self.nodes, self.by_type))
        out += [self._compare(now, t) for t in self.terms if t is not now]
        if abs(self.mixed_gap) >= LEAST_GAP:
            more = "more" if self.mixed_gap > 0 else "less"
            gap = f"The plan took its nodes for {abs(self.mixed_gap):.0%} {more} than they do"
            out.append(f"{gap}, because {self.nodes} nodes exchange {more} than it assumed.")
        return out

    def _on(self, nodes: int, by_type: ByType) -> str:
        some = [f"{count} {kind or 'other'}" for kind, count in zip(self.types, by_type, strict=True) if count]
        return " and ".join(some) or _nodes(nodes)

    def _compare(self, now: Term, other: Term) -> str:
        on = self._on(other.nodes, other.by_type)
        if not other.allowed:
            return f"It cannot run on {on}."
        worth = f"{_number(other.gain)} over the next {self.t_fwd_s:g} s instead of {_number(now.gain)}"
        text = f"On {on} it would be worth {worth}"
        if other.nodes < now.nodes:
            return f"{text}, and a node would be free."
        if self.types:
            return f"{text}."
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
    nodes, by_type = counts.get(trainer, 0), ByType()
    if problem.types:
        by_type = candidate.held if plan.status is PlanStatus.KEPT else dict(plan.by_type)[trainer]
    donor, loss = _cheapest_donor(problem, counts, trainer) if not problem.types else (None, 0.0)
    rate = mixed_rate(candidate.value, nodes, candidate.effective(by_type)) if by_type else 0.0
    return Explanation(
        trainer=trainer,
        status=plan.status,
        had_nodes=candidate.current_nodes,
        nodes=nodes,
        t_fwd_s=problem.t_fwd_s,
        terms=tuple(_terms(candidate, nodes, by_type, problem.t_fwd_s)),
        free_nodes=problem.nodes - sum(counts.values()),
        donor=donor,
        donor_loss=loss,
        pinned=candidate.pin is not None,
        types=problem.types,
        had_by_type=candidate.held,
        by_type=by_type,
        mixed_gap=candidate.value_on(by_type) / rate - 1.0 if rate > 0 else 0.0,
    )


def _terms(candidate: Candidate, nodes: int, by_type: ByType, t_fwd_s: float) -> Iterator[Term]:
    """The terms for one node fewer, these, and one more; of each type that it can use, if there are several."""
    if not by_type:
        yield from (_term(candidate, n, t_fwd_s) for n in _neighbours(candidate, nodes) if n >= 0)
        return
    usable = [k for k, speed in enumerate(candidate.speeds) if speed > 0]
    for change, k in [*((-1, k) for k in usable), (0, 0), *((1, k) for k in usable)]:
        on = tuple(n + change * (i == k) for i, n in enumerate(by_type))
        if min(on) >= 0:
            per_s, before = candidate.value_on(on), candidate.value_on(candidate.held)
            cost = t_fwd_s * per_s - candidate.gain_on(on, t_fwd_s)
            pause_s = cost / before if before > 0 else 0.0
            yield Term(sum(on), candidate.allows_on(on), per_s, pause_s, t_fwd_s * per_s, cost, on)


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
    """How fast a trainer computes on nodes of each type, in words; nothing before it has a ``reference``."""
    said = [
        f"{_number(speed.value)} ± {speed.error:.0%} on {kind or 'other'}{'' if speed.measured else ' (expected)'}"
        for kind, speed in speeds.items()
        if reference is not None and kind != reference
    ]
    return [f"Speed of a node, relative to {reference or 'other'} ones: {', '.join(said)}."] if said else []


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
