"""A study: trials of one script with different parameters, of which the better ones train longer.

A trial is a trainer throughout its life. It trains until its script has reported the study's metric as often as its
*rung* says. If it is among the best there, it is *promoted* and trains on to the next rung; if not, it is *shelved*: it
keeps a verified checkpoint, has no nodes, and continues from there if it is promoted later
(:mod:`pilot.core.study.study`). Where a trial stands follows from the facts recorded here; there is no other state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from pilot.core.errors import UserError
from pilot.core.ids import StudyId, TrainerId, TrainerUid
from pilot.core.trainer.proof import Proof
from pilot.core.trainer.spec import TrainerSpec

FAILURES_ALLOWED = 5
"""After this many failed trials in a row the study stops, because parameters cannot be the cause."""

ASKS_ALLOWED = 3
"""How often the sampler is asked for one trial before the study stops."""

TRIALS_MAX = 100_000
TO_END = 1_000_000
"""A rung of this many reports is the end of the script: a trial reaches it when its script ends."""
STEP = 3
"""As long as it is unknown, the end of a script is assumed to be at this many times the reports of the rung before."""

LATEST = 20
"""The time per report is the median of this many."""

Parameter = str | int | float | bool
Parameters = tuple[tuple[str, Parameter], ...]


@dataclass(frozen=True, slots=True)
class StudySpec:
    """A study as submitted."""

    study: StudyId  #: its name in the pool
    metric: str  #: the name under which the script reports what counts
    maximise: bool  #: whether larger is better
    #: numbers of reports after which trials are compared; increasing. A trial that reaches the last is complete
    rungs: tuple[int, ...]
    trials: int  #: how many there are in all
    #: the spec of every trial's trainer except its name and uid; the template's uid is the study's
    template: TrainerSpec
    deadline_s: float | None = None  #: the study stops then, in seconds since the pool began; None: it has no deadline

    def __post_init__(self) -> None:
        if not self.rungs or any(a >= b for a, b in zip((0, *self.rungs), self.rungs, strict=False)):
            raise UserError(f"rungs must increase, from 1 up: {', '.join(map(str, self.rungs)) or 'none are given'}")
        if self.rungs[-1] > TO_END:
            raise UserError(f"a rung is at most {TO_END} reports, got {self.rungs[-1]}")
        if not 1 <= self.trials <= TRIALS_MAX:
            raise UserError(f"a study has between 1 and {TRIALS_MAX} trials, got {self.trials}")

    @property
    def to_end(self) -> bool:
        """Whether the last rung is the end of the script."""
        return self.rungs[-1] == TO_END

    @property
    def lengths(self) -> tuple[int, ...]:
        """The rungs, with a guess of the end of the script."""
        return (*self.rungs[:-1], STEP * self.rungs[-2] if self.rungs[1:] else 1) if self.to_end else self.rungs

    def trainer(self, number: int) -> TrainerId:
        """The id of trial ``number`` as a trainer."""
        return TrainerId(f"{self.study}-{number}")

    def trial(self, number: int) -> TrainerSpec:
        """The specification of trial ``number`` as a trainer; always the same."""
        uid = TrainerUid(f"{self.template.uid[:24]}{number:08x}")
        return replace(self.template, trainer=self.trainer(number), uid=uid)


@dataclass(slots=True)
class Trial:
    """One trial."""

    number: int
    parameters: Parameters = ()
    rung: int = 0  #: the index of the rung to which it trains
    values: list[float] = field(default_factory=list)  #: what it reported at each rung that it reached
    asked: bool = False  #: its parameters are known, and it is a trainer
    told: bool = False  #: the sampler has its value at the first rung, or its end
    ended: str = ""  #: why its trainer has ended; "": it trains or is shelved
    failed: bool = False  #: it ended so that the sampler should know
    asks: int = 1
    reports: int = 0  #: how many were received
    last: float = math.nan  #: the last of them
    reported_s: float | None = None  #: when the last one was; None: not yet since its group formed

    @property
    def waits(self) -> bool:
        """Whether its parameters are being chosen."""
        return not self.asked and not self.ended

    @property
    def trains(self) -> bool:
        """Whether it should have nodes while its study runs."""
        return self.asked and not self.ended and len(self.values) <= self.rung


@dataclass(frozen=True, slots=True)
class Reservation:
    """``nodes`` that are reserved since ``since_s`` for a trial whose parameters are being chosen."""

    nodes: int
    since_s: float


@dataclass(slots=True)
class Study:
    """One study in the core."""

    spec: StudySpec
    total: int  #: how many trials there will be
    trials: list[Trial] = field(default_factory=list)  #: those whose parameters were asked for, by number
    reserved: dict[int, Reservation] = field(default_factory=dict)  #: the nodes for those that are not trainers yet
    exhausted: bool = False  #: the search space has no more trials
    stopped: str = ""  #: why it does not continue; "": it does
    failures: int = 0  #: failed trials in a row
    heard: dict[str, None] = field(default_factory=dict)  #: names of reported metrics, until its own is reported
    report_s: list[float] = field(default_factory=list)  #: how long the last reports took on one node, in seconds
    proof: Proof = field(default_factory=Proof)  #: of its script, for all of its trials

    @property
    def id(self) -> StudyId:
        """The study's name."""
        return self.spec.study

    @property
    def unasked(self) -> int:
        """How many more trials it may ask for now."""
        return 0 if self.stopped or self.exhausted else max(0, self.total - len(self.trials))

    def offers(self, most: int) -> list[TrainerSpec]:
        """The trials that it would ask for next, as they would be submitted; at most ``most``."""
        first = len(self.trials)
        return [self.spec.trial(number) for number in range(first, first + min(self.unasked, most))]

    @property
    def over(self) -> bool:
        """Whether it is over: none of its trials trains, and none will unless trials are added."""
        going_on = any(trial.trains or trial.waits for trial in self.trials)
        return not self.stopped and not self.unasked and not going_on

    def complete(self, trial: Trial) -> bool:
        """Whether ``trial`` has reached the last rung."""
        return len(trial.values) == len(self.spec.rungs)

    def key(self, value: float) -> float:
        """The key by which values are compared: smaller is better; infinity and NaN come last."""
        if not math.isfinite(value):
            return math.inf
        return -value if self.spec.maximise else value

    def lacks(self, trial: Trial) -> str:
        """The reports that ``trial`` lacks for its rung, in words; "": none."""
        if not trial.trains:
            return ""
        asked, made = self.spec.lengths[trial.rung], f"after {trial.reports} of" if trial.reports else "without"
        return f"{made} {asked} report{'' if asked == 1 else 's'} of {self.spec.metric}"

    def best(self) -> Trial | None:
        """The best trial at the highest rung that any trial reached; None: no trial reached one."""
        reached = [trial for trial in self.trials if trial.values]
        return min(reached, key=lambda t: (-len(t.values), self.key(t.values[-1]), t.number), default=None)


def promotable(study: Study) -> Iterator[Trial]:
    """The trials that should continue to their next rung and have not been promoted yet: asynchronous successive
    halving that shelves.

    At each rung the best are promoted to the next one: of m that reached rung i, with r_i reports, as many as make the
    next rung cost the same in total, floor(m · r_i / r_{i+1}) (ASHA, Li et al., MLSys 2020, with η = r_{i+1} / r_i for
    each rung). This is decided again with every value, so no trial waits for a rung to fill: one that is among the best
    later is promoted later and continues from its checkpoint. Once no other trial can reach a rung, its best one is
    promoted in any case.
    """
    for rung in range(len(study.spec.rungs) - 1):
        order = ranked(study, rung)
        for trial in order[: places(study, rung, len(order))]:
            if trial.rung == rung and not trial.ended:
                yield trial


def ranked(study: Study, rung: int) -> list[Trial]:
    """The trials that have reached ``rung``, the best first; among equals, the earlier one first."""
    there = [trial for trial in study.trials if len(trial.values) > rung]
    return sorted(there, key=lambda trial: (study.key(trial.values[rung]), trial.number))


def places(study: Study, rung: int, reached: int) -> int:
    """How many of ``reached`` trials at ``rung`` are promoted to the next one."""
    rungs = study.spec.lengths
    return max(reached * rungs[rung] // rungs[rung + 1], int(reached > 0 and _closed(study, rung)))


def _closed(study: Study, rung: int) -> bool:
    """Whether no other trial can reach ``rung``."""
    return not study.unasked and not any(
        len(trial.values) <= rung and (trial.trains or trial.waits) for trial in study.trials
    )


LEAST = 0.01
"""The weight of a trial that is too late for the deadline: not worth a node that another trainer can use."""

NEW = Trial(-1)
"""A trial that has not been asked for."""


def weights(study: Study, trials: Sequence[Trial], left_reports: float) -> Mapping[TrainerId | None, float]:
    """Return the weights of ``trials`` in plans, by trainer: the worth of their work to their study, relative to that
    of one more trial (under None).

    A study ends with the best trial at the highest rung. From that point of view a trial is a job that pays off once it
    gets there, with probability P and after an expected E more reports (it may be shelved on the way). Jobs with the
    largest P / E come first (Smith's rule for the expected weighted completion time; for jobs that may end early it is
    Gittins' index). A trial that trains to rung k, has made c reports, and of which each rung j keeps r_j / r_{j+1},
    has

        P = p · r_{k+1} / r_J     p = min(1, 2 (1 - u) r_k / r_{k+1}): the better half of those promoted last, by their
                                  rank u in (0, 1), is likelier to be promoted again; p = r_k / r_{k+1} on average
        E = (r_k - c) + p · Σ_{j = k+1..J} (r_{k+1} / r_j) (r_j - r_{j-1})

    where J is the last rung, or with a deadline the highest that any of the study's trials can still reach in time. A
    trial that cannot reach it before the deadline has :data:`LEAST`. The weight is P / E relative to that of a new
    trial, whose weight is 1, so a study's first trials compete with other trainers as any trainer does.

    ``left_reports`` : how many reports a trial can still make before the deadline, on as many nodes as it can use.
    """
    seen = [*trials, *([NEW] if study.unasked else [])]
    last = max((_reach(study, trial, left_reports) for trial in seen), default=-1)
    if last < 0:
        return dict.fromkeys((None, *(study.spec.trainer(t.number) for t in trials)), LEAST)
    new = _index(study, NEW, last, 0.5)
    found: dict[TrainerId | None, float] = {None: 1.0 if _reach(study, NEW, left_reports) >= last else LEAST}
    ranks = {rung: _ranks(study, rung) for rung in {trial.rung - 1 for trial in trials if trial.rung}}
    for trial in trials:
        rank = ranks[trial.rung - 1].get(trial.number, 0.5) if trial.rung else 0.5
        in_time = _reach(study, trial, left_reports) >= last
        found[study.spec.trainer(trial.number)] = _index(study, trial, last, rank) / new if in_time else LEAST
    return found


def reports_left(study: Study, now_s: float, speedup: float) -> float:
    """How many reports a trial can make before the deadline if it is ``speedup`` times as fast as on one node."""
    if study.spec.deadline_s is None or not study.report_s:
        return float("inf")
    return max(0.0, study.spec.deadline_s - now_s) * speedup / median(study.report_s)


def _reach(study: Study, trial: Trial, left_reports: float) -> int:
    """The highest rung that it can still reach; -1: none."""
    rungs = enumerate(study.spec.lengths)
    there = [rung for rung, reports in rungs if rung >= trial.rung and reports - trial.reports <= left_reports]
    return there[-1] if there else -1


def _ranks(study: Study, rung: int) -> dict[int, float]:
    """The ranks of the trials that were promoted from ``rung``, by number, from 0 (the best) to 1."""
    order = ranked(study, rung)
    promoted = order[: max(1, places(study, rung, len(order)))]
    return {trial.number: (place + 0.5) / len(promoted) for place, trial in enumerate(promoted)}


def _index(study: Study, trial: Trial, last: int, rank: float) -> float:
    """P / E."""
    rungs, at = study.spec.lengths, trial.rung
    work = float(max(1, rungs[at] - trial.reports))
    if at >= last:
        return 1.0 / work
    chance = min(1.0, 2.0 * (1.0 - rank) * rungs[at] / rungs[at + 1])
    above = sum(rungs[at + 1] / rungs[j] * (rungs[j] - rungs[j - 1]) for j in range(at + 1, last + 1))
    return chance * (rungs[at + 1] / rungs[last]) / (work + chance * above)
