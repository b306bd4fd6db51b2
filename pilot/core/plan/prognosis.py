"""When trainers that wait are expected to start.

The pool is played forward: its trainers share its nodes by value, and whoever runs keeps its minimum; the one with the
least left ends, and so on. Nodes that come and go count as a number that goes from that of now to the pool's mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from pilot.core.curves.curve import Curve, concave_hull
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Candidate

WORK = 2000
"""About this many shares of trainers are computed for a forecast. Whoever starts later is expected at the same pace."""

REVERTS_S = 3600.0
"""After this time, 1/e of the difference between the nodes of now and the pool's mean is left."""

MEMORY_S = 24 * 3600.0
"""Nodes that the pool had this long ago count 1/e in its mean."""

LATE = 1.1
"""Waits are multiplied by this for what is left out, the cost of rescales above all: a forecast is late rather than
early."""


@dataclass(frozen=True, slots=True)
class Job:
    """A trainer in a forecast: it has ``left_s`` to do on one node (infinite: not known), ``speed`` of it per second by
    nodes. ``rough``: how much is left is a guess. At the latest in ``turn_in_s`` it has its turn. ``able``: there are
    enough nodes of types that it can use."""

    candidate: Candidate
    speed: Curve
    left_s: float
    rough: bool = False
    turn_in_s: float = math.inf
    able: bool = True

    @property
    def name(self) -> TrainerId:
        """Its trainer."""
        return self.candidate.trainer

    @property
    def runs(self) -> bool:
        """Whether it has nodes now."""
        return self.candidate.current_nodes >= self.candidate.min_nodes


@dataclass(frozen=True, slots=True)
class Expected:
    """A pool as it is expected to be."""

    nodes: Callable[[float], float]  #: how many nodes it has in so many seconds
    most: int  #: how many trainers may share them
    t_fwd_s: float  #: the forward-looking time of plans
    calm_s: float = math.inf  #: until nodes come or leave


@dataclass(frozen=True, slots=True)
class Prognosis:
    """A trainer's ``place`` among ``waiting`` ones, from 1, and in how many seconds it is expected to start. None: that
    cannot be foretold, for lack of nodes or because it is not known how long trainer ``endless`` will run. ``rough``:
    it depends on work that is not known exactly. ``turn``: it only says when its turn is, and may come earlier.
    """

    place: int
    waiting: int
    starts_in_s: float | None
    endless: str = ""
    rough: bool = False
    turn: bool = False

    def at_s(self, now_s: float) -> float | None:
        """When it is expected to start, on the clock that shows ``now_s``."""
        return None if self.starts_in_s is None else now_s + self.starts_in_s


def forecast(jobs: Sequence[Job], pool: Expected) -> dict[TrainerId, Prognosis]:
    """The prognosis for each of ``jobs`` that waits, in ``pool``; they are in the order of submission."""
    play = _Play([job for job in jobs if job.able], pool)
    play.run()
    waiting = [job for job in jobs if not job.runs]
    largest = max(pool.nodes(0.0), pool.nodes(math.inf))
    found: dict[TrainerId, Prognosis] = {}
    for place, job in enumerate(waiting, 1):
        fits = job.able and job.candidate.min_nodes <= largest
        in_s, rough = play.starts.get(job.name, (math.inf, False))
        in_s = max(pool.t_fwd_s, in_s * LATE) if in_s else 0.0
        turn = fits and job.turn_in_s < in_s
        in_s = min(job.turn_in_s, in_s)
        starts_in_s = in_s if fits and in_s < math.inf else None
        found[job.name] = Prognosis(place, len(waiting), starts_in_s, play.endless if fits else "", rough, turn)
    return found


class _Play:
    """A pool played forward. ``starts``: in how many seconds who waits starts, and whether that is rough. ``endless``:
    the first trainer that runs and of which nobody knows how long."""

    def __init__(self, jobs: list[Job], pool: Expected) -> None:
        self.starts: dict[TrainerId, tuple[float, bool]] = {}
        self.endless = ""
        self._jobs, self._pool = jobs, pool
        self._left_s = {job.name: job.left_s for job in jobs}
        self._held = {job.name: job.candidate.current_nodes for job in jobs}
        self._at_s, self._rough = 0.0, False

    def run(self) -> None:
        """Play until all have started, or nobody ends any more. Whoever is late starts at the same pace."""
        waiting = sum(not job.runs for job in self._jobs)
        for _ in range(WORK // max(6, min(self._pool.most, len(self._jobs)))):
            there = self._jobs[: self._pool.most]
            self._share_out(there)
            if len(self.starts) == waiting:
                return
            if not self._pass_on(there):
                runs = (job.name for job in there if self._held[job.name] and job.left_s == math.inf)
                self.endless = next(runs, "")
                return
        late = [job.name for job in self._jobs if not (job.runs or job.name in self.starts)]
        pace_s = self._at_s / max(1, len(self.starts))
        self.starts |= {name: (self._at_s + pace_s * number, True) for number, name in enumerate(late)}

    def _share_out(self, there: Sequence[Job]) -> None:
        """Divide the nodes of now; those that have some for the first time start."""
        if self._at_s >= self._pool.calm_s:  # with the nodes that come, more changes hands than by ends alone
            self._held = {job.name: min(self._held.get(job.name, 0), job.candidate.min_nodes) for job in there}
        self._held = divided(there, self._held, round(self._pool.nodes(self._at_s)), self._pool.t_fwd_s)
        for job in there:
            if self._held[job.name] and not job.runs:
                self.starts.setdefault(job.name, (self._at_s, self._rough))

    def _pass_on(self, there: Sequence[Job]) -> bool:
        """Let the time pass until the next trainer ends; False if none does."""
        speeds = [job.speed.at(self._held[job.name]) for job in there]
        ends_s = [
            self._left_s[job.name] / speed if speed else math.inf for job, speed in zip(there, speeds, strict=True)
        ]
        passed_s = min(ends_s, default=math.inf)
        ends = not self._at_s < self._pool.calm_s < self._at_s + passed_s
        passed_s = passed_s if ends else self._pool.calm_s - self._at_s
        if math.isinf(passed_s):
            return False
        for job, speed in zip(there, speeds, strict=True):
            self._left_s[job.name] -= passed_s * speed
        if ends:
            self._rough = self._jobs.pop(ends_s.index(passed_s)).rough or self._rough
        self._at_s += passed_s
        return True


def divided(jobs: Sequence[Job], held: Mapping[TrainerId, int], nodes: int, t_fwd_s: float) -> dict[TrainerId, int]:
    """How ``nodes`` nodes are divided: trainers keep what they have ``held``, as far as that is there; free nodes go to
    whoever gains most per node (as in :mod:`pilot.planners.prices`). Then those that wait get their minimum of the
    trainer that loses least by it, if that gains more than the rescale costs it (eq. 16)."""
    counts, left = {job.name: 0 for job in jobs}, nodes
    for job in jobs:
        counts[job.name] = job.candidate.most_within(min(held.get(job.name, 0), left))
        left -= counts[job.name]
    steps = ((-per_node, place, upto) for place, job in enumerate(jobs) for per_node, upto in _steps(*_shape(job)))
    for _, place, upto in sorted(steps) if left else ():
        name, now = jobs[place].name, counts[jobs[place].name]
        counts[name] = max(now, jobs[place].candidate.most_within(min(upto, now + left)))
        left -= counts[name] - now
    for job in jobs:
        if counts[job.name] or job.candidate.min_nodes > nodes:
            continue
        given = [_offer(job.candidate, left, donor.candidate, counts[donor.name], t_fwd_s) for donor in jobs]
        gain, place, fewer = max((gain, -place, fewer) for place, (gain, fewer) in enumerate(given))
        if gain > 0:
            donor = jobs[-place]
            counts[job.name] = job.candidate.most_within(left + fewer)
            kept = donor.candidate.most_within(counts[donor.name] - fewer)
            left += counts[donor.name] - kept - counts[job.name]
            counts[donor.name] = kept
    return counts


def _offer(c: Candidate, free: int, donor: Candidate, nodes: int, t_fwd_s: float) -> tuple[float, int]:
    """The gain (eq. 16) if ``donor`` gives some of its ``nodes`` to ``c``, which gets the ``free`` ones, too; and how
    many."""
    now = donor.value_at(nodes)
    missing, parts = c.min_nodes - free, (1, 2, 3, 4)
    some = [
        n for n in (missing, nodes - donor.min_nodes, *(nodes * part // 4 for part in parts)) if missing <= n <= nodes
    ]
    gains = [(c.value_at(c.most_within(free + n)) - now + donor.value_at(nodes - n), n) for n in some if n > 0]
    gain, fewer = max(gains, default=(-math.inf, 0))
    return t_fwd_s * gain - donor.rescale_down_s * now, fewer


def _shape(job: Job) -> tuple[Curve, int, int, tuple[int, ...]]:
    c = job.candidate
    return c.value, c.min_nodes, c.max_nodes, c.sizes


@lru_cache(maxsize=512)
def _steps(value: Curve, least: int, most: int, sizes: tuple[int, ...]) -> tuple[tuple[float, int], ...]:
    """The corners of the concave hull of ``value``: what each node gains up to it, and its count."""
    counts = sizes or sorted({least, most, *(n for n in value.counts() if least < n < most)})
    hull = concave_hull([(0, 0.0), *((n, value.at(n)) for n in counts)])
    return tuple((_gain(one, other), other[0]) for one, other in pairwise(hull) if other[1] > one[1])


def _gain(one: tuple[int, float], other: tuple[int, float]) -> float:
    return (other[1] - one[1]) / (other[0] - one[0])


@dataclass(slots=True)
class NodesSeen:
    """How many nodes the pool had: ``nodes`` since ``since_s``; before that, ``node_s`` node-seconds in ``pool_s``
    seconds with any, both decaying alike (:data:`MEMORY_S`)."""

    nodes: int = 0
    since_s: float = 0.0
    node_s: float = 0.0
    pool_s: float = 0.0

    def note(self, now_s: float, nodes: int) -> None:
        """The pool has ``nodes`` nodes from ``now_s`` on."""
        share = math.exp(-(now_s - self.since_s) / MEMORY_S) if self.nodes else 1.0
        time_s = MEMORY_S * (1.0 - share)
        self.node_s, self.pool_s = self.node_s * share + self.nodes * time_s, self.pool_s * share + time_s
        self.nodes, self.since_s = nodes, now_s

    def expected(self, usable: int) -> Callable[[float], float]:
        """The nodes to be expected in so many seconds, of which ``usable`` are there now."""
        mean = self.node_s / self.pool_s if self.pool_s else usable
        return lambda in_s: mean + (usable - mean) * math.exp(-in_s / REVERTS_S)
