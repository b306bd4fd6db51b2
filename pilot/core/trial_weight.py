"""What a trial's work is worth to its study, against that of one more trial: the weight of its value in plans.

A study ends with the best trial at the highest rung. From that point of view a trial is a job that pays off once it
gets there, with probability P and after an expected E more reports (it may be shelved on the way). Jobs with the
largest P / E come first (Smith's rule for the expected weighted completion time; for jobs that may end early it is
Gittins' index). A trial that trains to rung k, has made c reports, and of which each rung j keeps r_j / r_{j+1}, has

    P = p · r_{k+1} / r_J        p = min(1, 2 (1 - u) r_k / r_{k+1}): the better half of those promoted last, by their
                                 rank u in (0, 1), is likelier to be promoted again; p = r_k / r_{k+1} on average
    E = (r_k - c) + p · Σ_{j = k+1..J} (r_{k+1} / r_j) (r_j - r_{j-1})

where J is the last rung, or with a deadline the highest that any of the study's trials can still reach in time. A trial
that cannot reach it before the deadline has :data:`LEAST`. The weight is P / E relative to that of a new trial, whose
weight is 1, so a study's first trials compete with other trainers as any trainer does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from pilot.core.ids import TrainerId
from pilot.core.study import Study, Trial, places, ranked

LEAST = 0.01
"""The weight of a trial that is too late for the deadline: not worth a node that another trainer can use."""

NEW = Trial(-1)
"""One that has not been asked for."""


def weights(study: Study, trials: Sequence[Trial], left_reports: float) -> Mapping[TrainerId | None, float]:
    """The weights of ``trials``, by trainer; under None, that of one more trial.

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
    rungs = enumerate(study.spec.rungs)
    there = [rung for rung, reports in rungs if rung >= trial.rung and reports - trial.reports <= left_reports]
    return there[-1] if there else -1


def _ranks(study: Study, rung: int) -> dict[int, float]:
    """The ranks of the trials that were promoted from ``rung``, by number, from 0 (the best) to 1."""
    order = ranked(study, rung)
    promoted = order[: max(1, places(study, rung, len(order)))]
    return {trial.number: (place + 0.5) / len(promoted) for place, trial in enumerate(promoted)}


def _index(study: Study, trial: Trial, last: int, rank: float) -> float:
    """P / E."""
    rungs, at = study.spec.rungs, trial.rung
    work = float(max(1, rungs[at] - trial.reports))
    if at >= last:
        return 1.0 / work
    chance = min(1.0, 2.0 * (1.0 - rank) * rungs[at] / rungs[at + 1])
    above = sum(rungs[at + 1] / rungs[j] * (rungs[j] - rungs[j - 1]) for j in range(at + 1, last + 1))
    return chance * (rungs[at + 1] / rungs[last]) / (work + chance * above)
