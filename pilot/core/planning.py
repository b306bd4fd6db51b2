"""Plans: when another one is needed, the problem that a planner gets, and the targets that follow from its answer.

How many trainers share the pool is Pj_max where a user sets it. Else a problem includes those that hold nodes and the
first that wait, and its planner decides how many of these are worth planning for; from the first that it leaves out
(``Plan.first_out``) on, trainers without nodes are not admitted until another plan.

Whatever changes the problem (nodes joined or left, a trainer arrived or ended) makes a new ``Problem`` and requests its
solution (``Solve``). A newer problem makes the older one stale, and a problem whose answer was to change nothing is not
posed again (``settled``). Progress poses a problem, at a bounded rate, when a curve differs from that in the last
problem. ``PlanReady`` sets each trainer's *target* nodes. Until then, and if no plan comes, targets stay as they are: a
slow or failing solver never strands a node. Only a trainer that arrives while no plan is being made gets its minimum of
the free nodes at once: it starts while its batch is collected.

A problem treats nodes as interchangeable. If too many are set aside for a trainer to get its count, the plan is not
carried out, and the problem is posed again with at most what that trainer can have (``reach``). With periodic plans the
problem waits until a decision is due, and until then events only consult :mod:`pilot.core.plan.between`; while a
decision is ``awaited``, events pose it again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pilot.core import events
from pilot.core.commands import Command, Solve
from pilot.core.curves import profiles
from pilot.core.curves.measured import learn
from pilot.core.errors import InvariantError
from pilot.core.ids import NodeId, PlanId, TrainerId
from pilot.core.node_types import NodeTypes
from pilot.core.plan.aging import admit
from pilot.core.plan.assign import assign
from pilot.core.plan.between import interim, next_due_s
from pilot.core.plan.idle import Bound, Idle, idle_by
from pilot.core.plan.objective import mean_completion_time
from pilot.core.plan.problem import UNSAID_STEP_S, ByType, Candidate, PlanStatus, Problem, place
from pilot.core.plan.remaining import both, completion_weights
from pilot.core.pool.losses import NO_LOSS
from pilot.core.pool.pool import NONE_END
from pilot.core.trainer.trainer import Trainer

CURVE_PLANS = 2
"""At most this many plans per forward-looking time are asked for because curves moved."""

QUEUE_SHARE = 0.97
"""Where planners decide how many trainers share the pool: what these are worth, of what the whole queue is worth."""

MOST = 200
"""Where planners decide, a problem includes at most this many trainers besides those that hold nodes: the plan must be
there in time."""


class Planning(NodeTypes):
    """The trainers, and the nodes that plans give them."""

    @property
    def parallel_most(self) -> int:
        """How many trainers may share the pool: Pj_max, or as many as a problem includes."""
        return self.config.max_parallel_trainers or MOST

    def admitted(self) -> list[Trainer]:
        """The trainers that share the pool now: Pj_max at most, or those that the last plan did not leave out."""
        return self._let_in(self._considered())

    def _let_in(self, there: list[Trainer]) -> list[Trainer]:
        """Those of ``there``, which a problem includes, that the last plan did not leave out."""
        out = self.plan.first_out if self.plan is not None else None
        waits_from = next((place for place, t in enumerate(there) if t.id == out and not t.target), len(there))
        return there[:waits_from] + [trainer for trainer in there[waits_from:] if trainer.target]

    def idle(self) -> Idle | None:
        """The nodes that stay idle because of a bound; None: none do, or a plan that is awaited may use them."""
        free = self.pool.usable - len(self.pool.owner) - self._studies.reserved
        if free < 1 or self.solving or self.arrivals.trainers or self.draining:
            return None
        admitted, most = self.admitted(), self.parallel_most
        bound = Bound.PROBLEM if self.config.max_parallel_trainers is None else Bound.PARALLEL
        beyond = self._registry.queued([*admitted, *self.stranded()])
        if beyond and len(admitted) < most:
            return None
        return idle_by(free - len(self._ending(self.now_s).nodes), admitted, beyond, bound, most)

    def undecided(self, trainer: Trainer) -> bool:
        """Whether a plan that is awaited, or the next decision, decides if ``trainer``, which has no nodes, is
        admitted."""
        planner_decides = self.config.max_parallel_trainers is None and not trainer.target
        came_since = self.config.decide_every_s and self.aging.since_s.get(trainer.id, 0.0) > self.decided_s
        return planner_decides and bool(self.solving or self.arrivals.trainers or came_since)

    def _considered(self) -> list[Trainer]:
        """The trainers that a problem includes."""
        most = self.config.max_parallel_trainers
        registry = self._registry
        first = registry.ahead(MOST, self.fits) if most is None else registry.admitted(most, self.fits)
        return admit(first, self.turns(), self._registry.open, most or math.inf)

    def _sharing(self) -> list[Trainer]:
        """Those that a problem includes now, and those that it no longer includes but that still have nodes."""
        there = {trainer.id for trainer in self._considered()}
        return [trainer for trainer in self._registry.open.values() if trainer.id in there or trainer.target]

    def turns(self) -> list[TrainerId]:
        """Whose turn it is. Turns begin with decisions only."""
        longest_s = self.config.longest_wait_s if self.decides_now() else math.inf
        nodes, most = self.pool.usable - self._studies.reserved, self.config.max_parallel_trainers or math.inf
        return self.aging.turns(self.now_s, longest_s, self._registry.open, nodes, most, self._may_run)

    def _may_run(self, trainer: Trainer) -> bool:
        return trainer.plannable and self.fits(trainer)

    def wanted_nodes(self) -> int:
        """How many nodes the pool should have: as many as a plan would use if there were enough for all (each of its
        terms, eq. 16, then depends on one trainer only), plus those here that no trainer can use. Where a planner sizes
        the queue for the pool, the pool is sized for all that a problem includes: else a small one would stay small."""
        trainers = self._considered() + self.stranded() + self._offers(self.parallel_most)
        wants = (self._candidate(t, t.spec.max_nodes).wants(self.config.t_fwd_s) for t in trainers)
        return sum(wants) + self._studies.reserved + len(self.useless())

    def useless(self) -> list[NodeId]:
        """The nodes of the pool that no trainer can use, so that other pilots must replace them. If it is the script
        that cannot start, replacing them would not help, and they do not count.
        """
        aside = filter(self.pool.is_free, self.pool.aside)
        return [*aside, *self.blame.useless_to([t for t in self.admitted() if not t.refusal], lasting=True)]

    def _offers(self, most: int) -> list[Trainer]:
        """Up to ``most`` trials that studies may ask for, within Pj_max."""
        asking = sum(len(study.reserved) for study in self.studies.values())
        room = max(0, self.parallel_most - len(self.admitted()) - asking)
        return self._studies.offers(min(room, most))

    # --- when another plan is needed --------------------------------------------------------------------------------

    def _arrived(self, came: Trainer | None) -> list[Command]:
        """A trainer that arrives and could have nodes is planned for with its batch; one that only queues is not. While
        a plan is being made, it is not known who waits."""
        if came is not None:
            self._note_waiting(came)
        there = self._considered() if self.solving else self.admitted()
        if came is None or came not in there or self.pool.usable < came.spec.min_nodes:
            return []
        self.arrivals.note(self.now_s, came.id)
        if not self.config.arrivals_s:
            return self._plan_if(self.arrivals.close())
        self._start_small(came)
        return []

    def _start_small(self, trainer: Trainer) -> None:
        """Give ``trainer`` its minimum of the free nodes until its batch is planned for. Not while a plan is being
        made, which counts on these nodes itself, nor with periodic plans, which have their own rule for free nodes, nor
        while nodes have several types: which is best is the plan's question."""
        if not (self.solving or self.config.decide_every_s or self._by_type()):
            soon = self._ending(self.now_s)
            for started in assign(self.pool, [trainer], {trainer.id: trainer.spec.min_nodes}, ending=soon).changed:
                self._touch(started.id)

    def _note_outdated(self, trainer_id: TrainerId) -> None:
        """Note if the trainer scales otherwise than the last problem assumed: then another one is due, as soon as that
        is old enough."""
        trainer = self._registry.open.get(trainer_id)
        if trainer is None or trainer_id not in self._touched:
            return
        if trainer.plannable and (trainer.measured.moved or self._speeds_moved(trainer)):
            self.outdated = self.outdated or f"trainer {trainer_id} scales differently than assumed"
        if self._curves_due_s() <= self.now_s:
            self._replan = self._replan or self.outdated

    def _curves_due_s(self) -> float:
        """When a plan is due because the curves in the last problem no longer hold."""
        return self.asked_s + self.config.t_fwd_s / CURVE_PLANS if self.outdated else math.inf

    def _decision_due_s(self) -> float:
        """The next multiple of the period, while there are trainers."""
        idle = self.draining or not self._registry.open
        return math.inf if idle else next_due_s(self.decided_s, self.config.decide_every_s)

    def decides_now(self) -> bool:
        """Whether a plan made now is a decision: always, unless plans are periodic."""
        return not self.config.decide_every_s or self.awaited or self._decision_due_s() <= self.now_s

    def _decide(self) -> list[Command]:
        if self._decision_due_s() > self.now_s:
            return []
        self.decided_s, self.awaited = self.now_s, True
        return self._plan_if("a decision is due")

    # --- the problem ------------------------------------------------------------------------------------------------

    def _ask(self, reason: str) -> list[Command]:
        self.asked_s, self.outdated = self.now_s, ""
        problem = self._next_problem()
        if self.settled and problem == self.problem:
            self.awaited = False
            return []  # the answer is known: everything stays as it is
        self.plan_id = PlanId(self.plan_id + 1)
        self.solving = problem is not None
        if problem is None:
            self.awaited = False
            return []
        self.problem, self.settled = problem, False
        return [Solve(self.plan_id, problem, reason)]

    def _next_problem(self) -> Problem | None:
        """The problem to solve next; None: no trainer could run, or no decision is due and none can get more."""
        there, reserved = self._considered(), self._studies.reserved
        admitted = self._let_in(there)
        for trainer in there:  # a trial that was promoted waits from now on
            self._note_waiting(trainer)
        free = self.pool.usable - reserved - sum(len(trainer.target) for trainer in there)
        trainers = there + self._offers(max(1, free))
        types = self._by_type()
        for trainer in trainers if types else ():
            self._extend_curve(trainer, types)
        learn([trainer.measured for trainer in trainers], self.priors, self.now_s)
        weights = self._weights(trainers)
        config, calm_s = self.config, self.changes.calm_s(self.now_s)
        known = self.costs, calm_s, self._forward_s(admitted), config.objective, weights
        pins = profiles.Profiler(self.now_s, self.pool.usable - reserved, admitted, *known).pins()
        problem = self._pose(trainers, pins, weights)
        if problem is not None and config.decide_every_s and not self.awaited:
            return interim(problem)
        return problem

    def _weights(self, trainers: Sequence[Trainer]) -> dict[TrainerId, float]:
        """Factors of the values of trainers: of trials, and of what they have left if that is the objective."""
        weights = self._studies.weights(self.now_s, self.pool.usable, trainers)
        if self.config.objective is not mean_completion_time:
            return weights
        left = completion_weights(self.now_s, [*self.trainers.values()], trainers, self.config.t_fwd_s)
        return both(weights, left)

    def _pose(
        self, trainers: Sequence[Trainer], pins: Mapping[TrainerId, int], weights: Mapping[TrainerId, float]
    ) -> Problem | None:
        """The problem of dividing the pool among ``trainers``; None if none of them could run.

        ``pins``: counts that are fixed; one that does not fit is dropped. ``weights``: factors of
        their values. While there are several types, nodes that end soon count like the others.
        """
        growing = [t for t in trainers if not t.refuses_to_grow]
        able = [(t, room) for t in growing if (room := self._room(t)) >= t.spec.min_nodes]
        if not able:
            return None
        config, types, reserved = self.config, self._by_type(), self._studies.reserved
        soon, useless = NONE_END if types else self._ending(self.now_s), self.blame.useless_to([t for t, _ in able])
        nodes = max(0, self.pool.usable - len(useless) - reserved - len(soon.nodes))
        candidates = [self._candidate(trainer, room, weights) for trainer, room in able]
        if types:
            free = [node for node in self.pool.available() if node not in useless]
            for node in (*useless, *free[max(0, len(free) - reserved) :]):
                types[self.pool.kind_of(node)] -= 1
            candidates = [self._typed(c, t, types) for c, (t, _) in zip(candidates, able, strict=True)]
        return Problem(
            nodes=sum(types.values()) if types else nodes,
            t_fwd_s=self._forward_s(trainers),
            candidates=tuple(_fixed(candidates, nodes, (*types.values(),), self.turns(), pins)),
            step_s=config.decide_every_s or UNSAID_STEP_S,
            ending=len(soon.nodes),
            ends_in_s=soon.left_s,
            losses=self.losses.rate if config.timed else NO_LOSS,
            queue_share=QUEUE_SHARE if config.max_parallel_trainers is None else 1.0,
            types=tuple(types),
            types_nodes=tuple(types.values()),
        )

    def _forward_s(self, trainers: Sequence[Trainer]) -> float:
        """How far the plan looks ahead. One that is only made because rates were measured holds for as long as the pool
        is calm and no trainer ends: what it gains need not pay for its rescales sooner."""
        if not self._by_rates:
            return self.config.t_fwd_s
        remain = (profiles.remains_s(self.now_s, t, len(t.target)) for t in trainers if t.target)
        return max(self.config.t_fwd_s, min([self.changes.calm_s(self.now_s), *remain]))

    def _room(self, trainer: Trainer) -> int:
        """The most nodes that it can have; none if the last plan gave too many and it is not among those that reach
        more."""
        most = trainer.room(self.pool)
        return most if self._reach is None else min(most, self._reach.get(trainer.id, 0))

    def _candidate(self, trainer: Trainer, room: int, weights: Mapping[TrainerId, float] | None = None) -> Candidate:
        value, weight = trainer.value(self.config.objective), (weights or {}).get(trainer.id, 1.0)
        candidate = trainer.candidate(value if weight == 1.0 else value.scaled(weight), room, self.costs)
        if not self.config.timed:
            return candidate
        return replace(candidate, trained_s=trainer.measured.trained_s(self.now_s), left_s=trainer.left_s())

    # --- its answer -------------------------------------------------------------------------------------------------

    def _plan_failed(self, event: events.PlanFailed) -> list[Command]:
        if event.plan_id == self.plan_id:
            self.solving = self.awaited = False
        return []

    def _plan_ready(self, event: events.PlanReady) -> list[Command]:
        if event.plan_id != self.plan_id:
            return []
        self.solving = False
        if self.problem is None or self.draining:
            return []
        if event.plan.status is PlanStatus.KEPT:
            self.plan, self.awaited = event.plan, False
            return []
        problem, counts, late, by_type = self.problem, event.plan.as_dict(), dict(event.plan.ending), event.plan.by_type
        if not problem.permits(event.plan):
            raise InvariantError(f"plan {event.plan_id} is not feasible: {by_type or counts}, ending: {late}")
        soon = NONE_END if problem.types else self._ending(self.asked_s)
        parts = {kind: {name: nodes[k] for name, nodes in by_type} for k, kind in enumerate(problem.types)}
        assigned = assign(self.pool, self._sharing(), counts, self.config.packing, soon, late, parts)
        if assigned.short:  # too many nodes are set aside for them; pose it again with at most what they can use
            self._reach = {c.trainer: c.max_nodes for c in problem.candidates} | assigned.short
            return self._plan_if(f"{', '.join(assigned.short)} cannot use the nodes that the plan gave")
        stays = {name: counts.get(name, 0) for name in problem.kept()} == problem.kept()
        kept = problem.kept_by_type()
        stays = stays and all(kept[name] == nodes for name, nodes in by_type if name in kept)
        self.plan, self.settled, self.awaited = event.plan, stays, False
        for trainer in assigned.changed:
            self._touch(trainer.id)
        return self._studies.won(self.now_s, counts)


def _fixed(
    candidates: Sequence[Candidate],
    nodes: int,
    types_nodes: ByType,
    turns: Sequence[TrainerId],
    pins: Mapping[TrainerId, int],
) -> Iterator[Candidate]:
    """``candidates`` with those ``turns`` (in order) and then those of the ``pins`` that fit, each and together."""
    by_name = {candidate.trainer: candidate for candidate in candidates}
    fixed = dict[TrainerId, Candidate]()

    def fits(claim: Candidate) -> bool:
        claims = [*(fixed | {claim.trainer: claim}).values()]
        if types_nodes:
            return place(claims, types_nodes) is not None
        return sum(c.min_nodes if c.pin is None else c.pin for c in claims) <= nodes

    for name in turns:
        if name in by_name and fits(by_name[name]):
            fixed[name] = replace(by_name[name], must_run=True)
    for candidate in candidates:
        runs, pin = fixed.get(candidate.trainer, candidate), pins.get(candidate.trainer)
        if pin is not None and runs.allows(pin) and fits(replace(runs, pin=pin)):
            runs = fixed[candidate.trainer] = replace(runs, pin=pin)
        yield runs
