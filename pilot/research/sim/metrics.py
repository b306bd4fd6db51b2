"""The metrics of a replay: resource integral, U, costs, run times (FreeTrain §4.1 and §5), interruptions, and how soon
plans are good."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from statistics import fmean

import numpy as np

from pilot.core.curves.curve import Curve, concave_hull
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Candidate, Problem
from pilot.planners import make
from pilot.research.sim.accounting import Account, Accounting, Counts, group_rate, times_of
from pilot.research.sim.records import Admitted, Kind, Records
from pilot.research.traces.fragments import Floats

BIN_S = 6 * 3600.0
"""U is also given by six hours (FreeTrain Fig 10)."""

U_IN_WORDS = (
    "U = A_e / A_s. A_e is the work done, less what rescaling cost. "
    "A_s is the work of the same trainers on eq_nodes dedicated nodes (of each type, if there are several): at each "
    "time the trainers that share the pool "
    "then, at their best total rate, without rescaling. Work is counted in {unit}."
)
Nodes = Sequence[float]
"""A number of nodes of each type."""
BestRate = Callable[[Admitted, Nodes], float]
"""The best total rate of trainers on some nodes."""

NO_TRAINER = "the lack of trainers"
"""The bound on pools in which nobody trains."""

NODE_SECONDS = "node-seconds at the speed of one node"


@dataclass(frozen=True, slots=True)
class Bin:
    """U over one stretch of the replay, against the eq_nodes of that stretch."""

    start_h: float  #: when it begins
    eq_nodes: float  #: the mean number of nodes in it
    efficiency: float | None  #: U; null: there was nothing to compare with


@dataclass(frozen=True, slots=True)
class Working:
    """The time in which there was work: trainers shared the pool."""

    hours: float  #: its length
    eq_nodes: float  #: the mean number of nodes in it
    efficiency: float | None  #: U of that time alone: A_s has its `eq_nodes`; null: there was nothing to compare with
    #: the same if A_s may spend its node-hours on more nodes at a time, for less time; null: not needed, as no trainer
    #: needs more than `eq_nodes`, and `efficiency` is at most 1
    shared_efficiency: float | None
    min_nodes: int  #: the largest minimum of a trainer


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Completed trainers on one scaling curve."""

    curve: int  #: its number
    completed: int  #: how many
    mean_h: float  #: mean time from admission to completion, in hours
    max_h: float  #: the longest time from admission to completion, in hours


@dataclass(frozen=True, slots=True)
class Summary:
    """The metrics of one replay; the same replay gives the same summary."""

    reached_h: float  #: how far it came, in hours
    complete: bool  #: whether it came to the end
    events: int  #: distinct times
    pool_changes: int  #: times at which nodes came or went
    solves: int  #: problems solved
    plans: dict[str, int]  #: how many, by status
    eq_nodes: float  #: FreeTrain eq. 18
    node_hours: float  #: FreeTrain eq. 17
    #: of all work: samples where all trainers have one scaling curve, else node-seconds at the speed of one node
    unit: str
    work: float  #: A_e (§4.1.2)
    static_work: float  #: A_s (§4.1.2)
    efficiency: float | None  #: U = A_e / A_s (§4.1.2); null: there was nothing to compare with
    working: Working  #: U of the time in which there was work
    samples: float  #: processed by all trainers, whatever their kind
    used: float  #: share of node-time that trained
    #: shares of node-time that was idle because of a bound, by its name: no trainer that was let in could use it
    idle: dict[str, float]
    preemption_per_event: float  #: work that preemptions cost, per change of the pool
    rescale_per_event: float  #: work that rescales cost, per change of the pool
    #: mean of (work until the next event) / (rescale cost), over events with a cost (Fig 8)
    return_on_rescale: float | None
    submitted: int  #: trainers submitted
    completed: int  #: trainers whose work was all done
    interruptions: float  #: per trainer, by preemptions and plans
    #: seconds from a trainer's admission until the total rate is 90% of the best one on the nodes that are there, the
    #: mean of all trainers; null: there were none
    to_oracle_s: float | None
    profile_node_s: float  #: node-seconds of trainers while they were profiled (they also trained)
    profile_cost: float  #: the most work that rescales for profiles can have cost
    six_hours: tuple[Bin, ...]  #: U by six hours
    run_times: tuple[RunTimes, ...]  #: of completed trainers, by scaling curve
    mean_waiting_s: float | None  #: time without nodes of trainers that have ended; null: none has
    mean_training_s: float | None  #: time with nodes of trainers that have ended; null: none has
    mean_total_s: float | None  #: time from submission to end of trainers that have ended; null: none has
    #: nodes that trainers span beyond the minimum, mean over time; null: without ``gpus_per_node``
    mean_spread: float | None
    budget_warned_h: float | None = None  #: when 80% of the pool's budget was used; null: never
    #: when all of the pool's budget was used, which ends the replay; null: never
    budget_ended_h: float | None = None


def summarize(
    records: Records,
    accounts: Mapping[TrainerId, Account],
    accounting: Accounting,
    submitted: int,
    complete: bool,
    gpus: bool = False,
) -> Summary:
    """Compute the metrics from the records; ``gpus``: a unit of the pool is a GPU."""
    columns, meter, ended = records.columns(), IntegralMeter(records), times_of(accounts.values())
    scale = meter.scale
    costs = columns["preemption"] + columns["rescale"]
    # Paid at once in the paper's accounting; a physical pause is in the gains already.
    charged = costs if accounting is Accounting.PAPER else np.zeros_like(costs)
    end_s = float(columns["time_s"][-1]) if records.moments else 0.0
    spans = meter.spans(0.0, end_s)
    changed = (columns["joined"] + columns["left"]) > 0
    per_event = scale / max(1, int(changed.sum()))
    work, static = meter.work(columns["gained"], charged, 0.0, end_s), meter.static_work(0.0, end_s)
    return Summary(
        reached_h=end_s / 3600,
        complete=complete,
        events=len(records.moments),
        pool_changes=int(changed.sum()),
        solves=len(records.solves),
        plans=dict(sorted(Counter(solve.status.value for solve in records.solves).items())),
        eq_nodes=meter.eq_nodes(0.0, end_s),
        node_hours=meter.node_seconds(0.0, end_s) / 3600,
        unit=meter.unit,
        work=work * scale,
        static_work=static * scale,
        efficiency=work / static if static else None,
        working=meter.working(work, spans),
        samples=sum(account.done for account in accounts.values()),
        used=_share(columns["used"], columns["pool"], spans),
        idle=_idle(records, columns["pool"], spans),
        preemption_per_event=float(columns["preemption"].sum()) * per_event,
        rescale_per_event=float(columns["rescale"].sum()) * per_event,
        return_on_rescale=_mean(returns_on_rescale(columns)),
        submitted=submitted,
        completed=sum(account.completed for account in accounts.values()),
        interruptions=_mean([account.interruptions for account in accounts.values()]) or 0.0,
        to_oracle_s=to_oracle_s(columns, meter.pools, records.admitted, accounts.values(), meter.best_rate),
        profile_node_s=float(columns["profiled"] @ spans),
        profile_cost=float(columns["profiling"].sum()) * scale,
        six_hours=tuple(_bins(meter, columns, charged, end_s)),
        run_times=tuple(_run_times(accounts.values())),
        mean_waiting_s=_mean([one.waiting_s for one in ended]),
        mean_training_s=_mean([one.training_s for one in ended]),
        mean_total_s=_mean([one.total_s for one in ended]),
        mean_spread=_share(columns["spread"], np.ones_like(columns["spread"]), spans) if gpus else None,
        budget_warned_h=_hours(records.budget_warned_s),
        budget_ended_h=_hours(records.budget_ended_s),
    )


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / 3600


class IntegralMeter:
    """Integrals over stretches of a replay."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._time_s = np.array([moment.time_s for moment in records.moments])
        self._pool = np.array([moment.pool for moment in records.moments], dtype=float)
        columns = [moment.pool_types or (moment.pool,) for moment in records.moments]
        self.pools = np.array(columns, dtype=float, ndmin=2)
        self._best: dict[tuple[Admitted, Counts], float] = {}
        self._plan = make("dp", limit_s=math.inf)
        curves = {kind.curve for kind in records.curves}
        only = next(iter(records.curves.values())) if len(curves) == 1 else None
        self.unit = "samples" if only else NODE_SECONDS
        self.scale = only.single_node_rate() if only else 1.0

    def spans(self, start_s: float, end_s: float) -> Floats:
        """How long each moment's state holds within [start_s, end_s)."""
        until = np.append(self._time_s[1:], self._time_s[-1:])
        held_s: Floats = np.minimum(until, end_s) - np.maximum(self._time_s, start_s)
        return held_s.clip(min=0.0)

    def work(self, gained: Floats, charged: Floats, start_s: float, end_s: float) -> float:
        """A_e over [start_s, end_s): the gains up to each moment, less the charges at it."""
        since = np.append(self._time_s[:1], self._time_s[:-1])
        inside_s = np.minimum(self._time_s, end_s) - np.maximum(since, start_s)
        share = inside_s.clip(min=0.0) / np.maximum(self._time_s - since, 1e-12)
        paid = charged[(self._time_s >= start_s) & (self._time_s < end_s)]
        return float(gained @ share - paid.sum())

    def node_seconds(self, start_s: float, end_s: float) -> float:
        """The node-seconds of the pool (FreeTrain eq. 17, in seconds)."""
        return float(self._pool @ self.spans(start_s, end_s))

    def eq_nodes(self, start_s: float, end_s: float) -> float:
        """The equivalent number of dedicated nodes (FreeTrain eq. 18)."""
        return self.node_seconds(start_s, end_s) / (end_s - start_s) if end_s > start_s else 0.0

    def static_work(self, start_s: float, end_s: float) -> float:
        """A_s over [start_s, end_s): the work of the same trainers on dedicated nodes."""
        spans = self.spans(start_s, end_s)
        return self._static_work(spans, self._mean_nodes(spans, end_s - start_s), self.best_rate)

    def _mean_nodes(self, spans: Floats, length_s: float) -> Nodes:
        """The mean number of nodes of each type over ``spans``, which are ``length_s`` in total."""
        seconds: list[float] = [float(column @ spans) for column in self.pools.T]
        return [s / length_s if length_s > 0 else 0.0 for s in seconds]

    def _static_work(self, spans: Floats, nodes: Nodes, rate: BestRate) -> float:
        held_s = dict[Admitted, float]()
        for span_s, admitted in zip(spans, self._records.admitted, strict=True):
            if span_s > 0:
                held_s[admitted] = held_s.get(admitted, 0.0) + float(span_s)
        return sum(rate(admitted, nodes) * seconds for admitted, seconds in held_s.items())

    def working(self, work: float, spans: Floats) -> Working:
        """U over the parts of ``spans`` in which trainers shared the pool: all ``work`` was done there."""
        busy = spans * [bool(admitted) for admitted in self._records.admitted]
        busy_s = float(busy.sum())
        each = self._mean_nodes(busy, busy_s)
        nodes = float(self._pool @ busy) / busy_s if busy_s else 0.0
        static = self._static_work(busy, each, self.best_rate)
        most = max((kind.min_nodes for kind in self._records.curves), default=0)
        unfair = len(each) == 1 and (most > nodes or work > static * (1 + 1e-9))
        shared = self._static_work(busy, each, self._shared_rate) if unfair else 0.0
        u, shared_u = (work / total if total else None for total in (static, shared))
        return Working(busy_s / 3600, nodes, u, shared_u, most)

    def best_rate(self, admitted: Admitted, nodes: Nodes) -> float:
        """The best total rate of ``admitted`` on ``nodes`` nodes of each type; linear between integers: one more node
        of each type comes in turn, that with the largest fraction first."""
        counts = [math.floor(n) for n in nodes]
        rate = low = self._best_rate(admitted, tuple(counts))
        for place in sorted(range(len(counts)), key=lambda place: math.floor(nodes[place]) - nodes[place]):
            fraction = nodes[place] - counts[place]
            counts[place] += 1
            high = self._best_rate(admitted, tuple(counts)) if fraction else low
            rate, low = rate + (high - low) * fraction, high
        return rate

    def _best_rate(self, admitted: Admitted, nodes: Counts) -> float:
        if (admitted, nodes) not in self._best:
            problem = Problem(sum(nodes), 1.0, self._candidates(admitted))
            if len(nodes) == 1:
                rate = self._plan(problem).objective
            else:
                typed = replace(problem, types=tuple(map(str, range(len(nodes)))), types_nodes=nodes)
                held = dict(self._plan(typed).by_type)
                rate = sum(_rate_on(c, held[c.trainer]) for c in problem.candidates)
            self._best[admitted, nodes] = rate
        return self._best[admitted, nodes]

    def _shared_rate(self, admitted: Admitted, nodes: Nodes) -> float:
        """The best mean total rate on ``nodes`` nodes on average, at most as many at a time as the pool ever had."""
        each = (_steps(candidate, int(self._pool.max())) for candidate in self._candidates(admitted))
        rate, left = 0.0, nodes[0]
        for per_node, more in sorted(chain.from_iterable(each), reverse=True):
            rate, left = rate + max(0.0, per_node) * min(more, left), left - min(more, left)
        return rate

    def _candidates(self, admitted: Admitted) -> tuple[Candidate, ...]:
        trainers = [kind for kind, count in admitted for _ in range(count)]
        return tuple(self._candidate(index, kind) for index, kind in enumerate(trainers))

    def _candidate(self, index: int, kind: Kind) -> Candidate:
        curve, speeds = self._records.curves[kind], kind.speeds
        value = curve.scaled(1.0 / curve.single_node_rate())
        if len(speeds) == 1 and speeds != (1.0,):
            value = Curve.of((n, group_rate(value, (n,), speeds)) for n in sorted(value.counts()))
        c = Candidate(TrainerId(f"{index}"), 0, kind.min_nodes, kind.max_nodes, value, 0.0, 0.0, kind.sizes)
        return replace(c, held=(0,) * len(speeds), speeds=speeds, one_type=kind.equal_shares)


def _rate_on(c: Candidate, held: Counts) -> float:
    """Its true rate on nodes of several types."""
    return group_rate(c.value, held, c.speeds, c.one_type) if sum(held) >= c.min_nodes else 0.0


def _steps(c: Candidate, most: int) -> Iterator[tuple[float, int]]:
    """The steps along the concave hull of its rates on up to ``most`` nodes: what a node adds, and how many nodes."""
    tried = {c.min_nodes, c.max_nodes, most, *c.value.counts(), *c.sizes}
    counts = [0, *sorted(n for n in tried if 0 < n <= most and c.allows(n))]
    for (left, low), (right, high) in pairwise(concave_hull((n, c.value_at(n)) for n in counts)):
        yield (high - low) / (right - left), right - left


def returns_on_rescale(columns: Mapping[str, Floats]) -> Floats:
    """The work until the next event divided by the cost of rescaling at this one (FreeTrain Fig 8)."""
    invested, returned = columns["rescale"][:-1], columns["gained"][1:]
    paid = invested > 0
    return returned[paid] / invested[paid]


def _bins(meter: IntegralMeter, columns: Mapping[str, Floats], charged: Floats, end_s: float) -> Iterable[Bin]:
    """U by six hours."""
    for start_s in np.arange(0.0, end_s, BIN_S).tolist():
        stop_s = min(end_s, start_s + BIN_S)
        work = meter.work(columns["gained"], charged, start_s, stop_s)
        static = meter.static_work(start_s, stop_s)
        yield Bin(start_s / 3600, meter.eq_nodes(start_s, stop_s), work / static if static else None)


def _run_times(accounts: Iterable[Account]) -> Iterable[RunTimes]:
    hours: dict[int, list[float]] = {}
    for account in accounts:
        if account.completed and account.ended_s is not None:
            ran_h = (account.ended_s - account.admitted_s) / 3600
            hours.setdefault(account.submission.curve, []).append(ran_h)
    return (RunTimes(curve, len(ran), sum(ran) / len(ran), max(ran)) for curve, ran in sorted(hours.items()))


def _idle(records: Records, pool: Floats, spans: Floats) -> dict[str, float]:
    """The shares of node-time that each bound left idle."""
    node_s: dict[str, float] = {}
    for idle, admitted, nodes, span_s in zip(records.idle, records.admitted, pool, spans, strict=True):
        bound, count = (NO_TRAINER, nodes) if not admitted else (idle.bound.value, idle.nodes) if idle else ("", 0)
        node_s[bound] = node_s.get(bound, 0.0) + float(count * span_s)
    return {bound: left / float(pool @ spans) for bound, left in sorted(node_s.items()) if left}


def _share(part: Floats, total: Floats, spans: Floats) -> float:
    """The integral of ``part`` over time as a share of that of ``total``."""
    integral = float(total @ spans)
    return float(part @ spans) / integral if integral else 0.0


def _mean(values: Floats | Sequence[float]) -> float | None:
    return fmean(values) if len(values) else None


GOOD = 0.9
"""The share of the oracle's rate that counts as good."""


def to_oracle_s(
    columns: Mapping[str, Floats],
    pools: Floats,
    admitted: Sequence[Admitted],
    accounts: Iterable[Account],
    best: BestRate,
) -> float | None:
    """Seconds from a trainer's admission until the total rate is :data:`GOOD` of what an oracle would get from the
    available nodes: the best division, at once and at no cost. The mean of all trainers; None: there is none.

    A trainer after which that rate is not reached counts until the end.
    """
    time_s = columns["time_s"]
    rates = columns["gained"][1:] / np.maximum(np.diff(time_s), 1e-12)
    waits = []
    for account in accounts:
        first = int(np.searchsorted(time_s, account.admitted_s))
        reached = (at for at in range(first, len(rates)) if _good(rates[at], pools[at].tolist(), admitted[at], best))
        waits.append(float(time_s[next(reached, -1)]) - account.admitted_s)
    return _mean(waits)


def _good(rate: float, pool: Nodes, admitted: Admitted, best: BestRate) -> bool:
    return any(pool) and rate >= GOOD * best(admitted, pool)
